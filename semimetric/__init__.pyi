__version__: str

from semimetric.data import Collection, DatasetSpec, Examples, read_collection, register_dataset
from semimetric.encoders import EncoderSpec, register_encoder
from semimetric.estimators.linear import APIT, APLLR, ISDML, LRML, SERAPH
from semimetric.estimators.runs import load, save
from semimetric.estimators.semimetric import SemiMetric
from semimetric.evaluation import Judged, Trust, evaluate, hold_back, nmi, recall_at_k, trust_report
from semimetric.graph import (
    class_posteriors,
    graph_modes,
    nearest_neighbors,
    propagate_affinities,
    propagated_affinity_matrix,
)
from semimetric.losses import angular_loss, contrastive_loss
from semimetric.methods import build_method, register_method
from semimetric.metric import Metric, minimize_angular
from semimetric.mining import mine_triplets
from semimetric.pipeline.linear import GuardWarning, LinearFit, learn_metric
from semimetric.pipeline.presets import training_settings
from semimetric.search import open_index, register_index
from semimetric.serve.suggest import suggest
from semimetric.training import Trainer, TrainingData, TrainingSettings

__all__ = [
    "APIT",
    "APLLR",
    "ISDML",
    "LRML",
    "SERAPH",
    "Collection",
    "DatasetSpec",
    "EncoderSpec",
    "Examples",
    "GuardWarning",
    "Judged",
    "LinearFit",
    "Metric",
    "SemiMetric",
    "Trainer",
    "TrainingData",
    "TrainingSettings",
    "Trust",
    "angular_loss",
    "build_method",
    "class_posteriors",
    "contrastive_loss",
    "evaluate",
    "graph_modes",
    "hold_back",
    "learn_metric",
    "load",
    "mine_triplets",
    "minimize_angular",
    "nearest_neighbors",
    "nmi",
    "open_index",
    "propagate_affinities",
    "propagated_affinity_matrix",
    "read_collection",
    "recall_at_k",
    "register_dataset",
    "register_encoder",
    "register_index",
    "register_method",
    "save",
    "suggest",
    "training_settings",
    "trust_report",
]
