__version__: str

from semimetric.data import Collection as Collection, DatasetSpec as DatasetSpec, Examples as Examples, read_collection as read_collection, register_dataset as register_dataset
from semimetric.encoders import EncoderSpec as EncoderSpec, register_encoder as register_encoder
from semimetric.estimators.linear import APIT as APIT, APLLR as APLLR, ISDML as ISDML, LRML as LRML, SERAPH as SERAPH
from semimetric.estimators.runs import load as load, save as save
from semimetric.estimators.semimetric import SemiMetric as SemiMetric
from semimetric.evaluation import Judged as Judged, Trust as Trust, evaluate as evaluate, hold_back as hold_back, map_at_r as map_at_r, nmi as nmi, recall_at_k as recall_at_k, trust_report as trust_report
from semimetric.graph import class_posteriors as class_posteriors, graph_modes as graph_modes, nearest_neighbors as nearest_neighbors, propagate_affinities as propagate_affinities, propagated_affinity_matrix as propagated_affinity_matrix
from semimetric.losses import angular_loss as angular_loss, contrastive_loss as contrastive_loss
from semimetric.methods import build_method as build_method, register_method as register_method
from semimetric.metric import Metric as Metric, minimize_angular as minimize_angular
from semimetric.mining import mine_triplets as mine_triplets
from semimetric.pipeline.linear import GuardWarning as GuardWarning, LinearFit as LinearFit, learn_metric as learn_metric
from semimetric.pipeline.presets import training_settings as training_settings
from semimetric.search import open_index as open_index, register_index as register_index
from semimetric.serve.add import add_examples as add_examples
from semimetric.serve.suggest import suggest as suggest
from semimetric.training import Trainer as Trainer, TrainingData as TrainingData, TrainingSettings as TrainingSettings
