"""Semi-supervised deep metric learning: an embedding from a few labels and many unlabelled examples."""

__version__ = "0.1.0"

from semimetric.evaluation import evaluate, nmi, recall_at_k
from semimetric.graph import graph_modes, nearest_neighbors, propagate_affinities, propagated_affinity_matrix
from semimetric.linear import GuardWarning, LinearFit, learn_metric
from semimetric.losses import angular_loss
from semimetric.methods import build_method
from semimetric.metric import Metric, minimize_angular
from semimetric.mining import mine_triplets
from semimetric.training import Trainer, TrainingData, TrainingSettings

__all__ = [
    "GuardWarning",
    "LinearFit",
    "Metric",
    "Trainer",
    "TrainingData",
    "TrainingSettings",
    "angular_loss",
    "build_method",
    "evaluate",
    "graph_modes",
    "learn_metric",
    "mine_triplets",
    "minimize_angular",
    "nearest_neighbors",
    "nmi",
    "propagate_affinities",
    "propagated_affinity_matrix",
    "recall_at_k",
]
