"""Algorithm 1 and everything around it."""

from semimetric.training.data import TrainingData, check_needs
from semimetric.training.device import choose_device
from semimetric.training.pretrain import pretrain
from semimetric.training.progress import Progress, Silent, TrainingWarning
from semimetric.training.run import Run
from semimetric.training.settings import PretrainSettings, TrainingSettings
from semimetric.training.trainer import Trainer, TrainingResult, load_model, model_tensors

__all__ = [
    "PretrainSettings",
    "Progress",
    "Run",
    "Silent",
    "Trainer",
    "TrainingData",
    "TrainingResult",
    "TrainingSettings",
    "TrainingWarning",
    "check_needs",
    "choose_device",
    "load_model",
    "model_tensors",
    "pretrain",
]
