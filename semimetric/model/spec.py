"""What a model is built of, in words and numbers, and what its training examples are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semimetric.data.photographs.images import Fit
    from semimetric.data.preprocess import PreprocessName
    from semimetric.data.samples import Kind


@dataclass(frozen=True)
class ModelSpec:
    """Everything that is needed to build a model again, apart from its weights.

    Parameters
    ----------
    kind, shape : what one raw example is; photographs have the shape ()
    inputs : shape of one input of the preprocessing
    encoder : name of the encoder; "none" for a metric on the inputs themselves, empty for a user's own module
    module : class of the user's own module
    backbone : frozen network that turns photographs into features
    side, fit : the square to which photographs are brought
    frozen_share : share of the backbone's own features in squared distances
    mirror : whether features are averaged with those of the mirror image
    """

    kind: Kind
    shape: tuple[int, ...]
    inputs: tuple[int, ...]
    preprocess: PreprocessName
    encoder: str
    module: str = ""
    backbone: str = ""
    side: int = 0
    fit: Fit = "crop"
    frozen_share: float = 0.0
    mirror: bool = False


@dataclass(frozen=True)
class ExampleNames:
    """Names of the training examples and of their classes, and where the examples came from.

    ``columns`` are the feature columns of a table. ``label_column`` and ``id_column`` are those that the user named.
    ``suggested`` are the rows of the labelled examples that ``suggest`` had chosen. ``digests`` are of the rows of a
    table.
    """

    names: tuple[str, ...] = ()
    source: str = ""
    classes: tuple[Any, ...] = ()
    columns: tuple[str, ...] = ()
    label_column: str = ""
    id_column: str = ""
    suggested: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()
