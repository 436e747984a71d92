"""Labels as users write them, and the numbers that methods learn from."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

UNLABELLED = -1
_MISSING = ("", "nan", "<na>", "na", "n/a", "#n/a", "null", "none", "?", "-")  # as programs and people write a gap
_NO_LABEL = ("", "-1", "-1.0", "nan", "<na>")  # the last two as NumPy and pandas write a missing value


class LabelWarning(UserWarning):
    """Labels can be read in two ways."""


def is_missing(text: str) -> bool:
    """Whether the text of a cell means that its value is missing; upper and lower case are the same."""
    return text.strip().lower() in _MISSING


def is_no_label(text: str) -> bool:
    """Whether the text of a label means that there is none; upper and lower case are the same."""
    return text.lower() in _NO_LABEL


def number_labels(y: Any) -> tuple[NDArray[Any], Tensor]:
    """The classes in ascending order, and for every entry of ``y`` (N,) the number of its class, -1 for none.

    An entry without a label is -1 or NaN; among texts also None, "", "-1", "nan" and pandas's missing value. If -1 and
    1 are the only values, they are taken for the two classes of a binary problem, with a warning: a single class would
    teach nothing.

    Parameters
    ----------
    y : array-like
        Labels (N,): numbers or texts.
    """
    import numpy as np
    import torch
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d

    values = column_or_1d(as_array(y), warn=True)
    known = is_labelled(values)
    if is_binary(values):
        warnings.warn(
            "y holds -1 and 1 alone: they are taken for two classes, and every example for labelled. If -1 stands for "
            "unlabelled, label examples of another class.",
            LabelWarning,
            stacklevel=4,
        )
        known = np.ones(len(values), dtype=bool)
    numbers = np.full(len(values), UNLABELLED, dtype=np.int64)
    named = values[known]
    if named.dtype == object and not all(isinstance(value, int | float | np.number) for value in named):
        named = named.astype(str)
    elif named.dtype == object:
        named = np.asarray(named.tolist())
    if len(named):
        check_classification_targets(named)
    classes, numbers[known] = np.unique(named, return_inverse=True)
    return classes, torch.from_numpy(numbers)


def as_array(y: Any) -> NDArray[Any]:
    """Labels as an array that keeps their types: a list of texts and missing values does not become all text."""
    import numpy as np
    from torch import Tensor

    if isinstance(y, Tensor):
        return np.asarray(y.cpu().numpy())
    array = np.asarray(y)
    if array.dtype.kind in "US" and not isinstance(y, np.ndarray):
        return np.array(y, dtype=object)
    return array


def is_binary(values: Any) -> bool:
    """Whether all labels are -1 and 1."""
    import numpy as np

    array = np.asarray(values)
    return array.dtype.kind in "iuf" and set(np.unique(array).tolist()) == {-1, 1}


def is_labelled(values: Any) -> NDArray[np.bool_]:
    """Which entries (N,) have a label."""
    import numpy as np

    array = as_array(values)
    if array.dtype.kind in "OUS":
        return np.array([value is not None and not is_no_label(str(value)) for value in array.tolist()], dtype=bool)
    return np.asarray((array != UNLABELLED) & (array == array))
