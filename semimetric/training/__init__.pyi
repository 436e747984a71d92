from semimetric.training.checkpoint import load_model, model_tensors
from semimetric.training.data import TrainingData, data_for
from semimetric.training.device import choose_device
from semimetric.training.pretraining import pretrain
from semimetric.training.progress import Progress, Silent, TrainingWarning
from semimetric.training.result import TrainingResult
from semimetric.training.run import Run
from semimetric.training.selection import selectable
from semimetric.training.settings import PretrainSettings, TrainingSettings
from semimetric.training.trainer import Trainer

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
    "choose_device",
    "data_for",
    "load_model",
    "model_tensors",
    "pretrain",
    "selectable",
]
