"""A user's own data: from what X may be to a model that embeds, finds and names."""

from semimetric.own.choice import Choice, Wishes, choose, settings_for
from semimetric.own.learn import Task, encoder_for, learn, named_by
from semimetric.own.learned import Built, Learned, Model, posteriors_of, with_labels
from semimetric.own.samples import Kind, Samples, images, is_paths, photographs, vectors
from semimetric.own.sight import Sight

__all__ = [
    "Built",
    "Choice",
    "Kind",
    "Learned",
    "Model",
    "Samples",
    "Sight",
    "Task",
    "Wishes",
    "choose",
    "encoder_for",
    "images",
    "is_paths",
    "learn",
    "named_by",
    "photographs",
    "posteriors_of",
    "settings_for",
    "vectors",
    "with_labels",
]
