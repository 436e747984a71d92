from semimetric.training.checkpoint import load_model as load_model, model_tensors as model_tensors
from semimetric.training.data import TrainingData as TrainingData, data_for as data_for
from semimetric.training.device import choose_device as choose_device
from semimetric.training.pretraining import pretrain as pretrain
from semimetric.training.progress import Printed as Printed, Progress as Progress, Silent as Silent, TrainingWarning as TrainingWarning
from semimetric.training.result import TrainingResult as TrainingResult
from semimetric.training.run import Run as Run
from semimetric.training.selection import selectable as selectable
from semimetric.training.settings import PretrainSettings as PretrainSettings, TrainingSettings as TrainingSettings
from semimetric.training.trainer import Trainer as Trainer
