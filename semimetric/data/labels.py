"""Labels as users write them, and the numbers that methods learn from."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from semimetric.core.checks import refuse_masked
from semimetric.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

UNLABELLED = -1
SUGGESTED = "suggested"
"""In the column ``source`` of a list of labels: ``suggest`` chose the example, so its label is no random sample."""

_MISSING = ("", "nan", "<na>", "na", "n/a", "#n/a", "null", "none", "?", "-")  # as programs and people write a gap
_UNTOLD = ("", "-1", "-1.0", "nan", "<na>", "unlabelled", "unlabeled")  # no label, and nobody takes it for a class
_NO_LABEL = {*_MISSING, *_UNTOLD, "unknown", "unsorted", "tbd", "todo"}


class LabelWarning(UserWarning):
    """Labels can be read in two ways."""


def is_missing(text: str) -> bool:
    """Whether the text of a cell means that its value is missing; upper and lower case are the same."""
    return text.strip().lower() in _MISSING


def is_no_label(text: str) -> bool:
    """Whether the text of a label, or the name of a folder, means that there is no label; case does not count."""
    return text.strip().lower() in _NO_LABEL


def placeholder_notes(texts: Iterable[str]) -> list[str]:
    """A sentence on labels that count as none, although they look like the name of a class."""
    found = Counter(text.strip() for text in texts if is_no_label(text) and text.strip().lower() not in _UNTOLD)
    told = ", ".join(f"{text!r} ({count})" for text, count in found.most_common())
    return [f"counted as unlabelled, by their label: {told}. Rename a class that is meant."] if found else []


def number_labels(y: Any) -> tuple[NDArray[Any], Tensor]:
    """The classes in ascending order, and for every entry of ``y`` (N,) the number of its class, -1 for none.

    An entry without a label is -1 or NaN; among texts also None and whatever ``is_no_label`` says, such as "" and, with
    a warning, "unknown" or "?". If -1 and 1 are the only values, they are taken for the two classes of a binary
    problem, with a warning: a single class would teach nothing.

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
    if values.dtype.kind in "if" and bool((below := (values < UNLABELLED) & (values == np.trunc(values))).any()):
        raise InputError(
            f"y must be -1 (unlabelled) or a class from 0, got {values[below][0]}. Number the classes from 0, or give "
            "them names."
        )
    if is_binary(values):
        warnings.warn(
            "y holds -1 and 1 alone: they are taken for two classes, and every example for labelled. If -1 stands for "
            "unlabelled, label examples of another class.",
            LabelWarning,
            stacklevel=4,
        )
        known = np.ones(len(values), dtype=bool)
    if values.dtype.kind in "OU":
        for note in placeholder_notes(value for value in values.tolist() if isinstance(value, str)):
            warnings.warn(note, LabelWarning, stacklevel=4)
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
    refuse_masked(y, "y")
    array = np.asarray(y)
    if array.dtype.kind in "US" and not isinstance(y, np.ndarray):
        return np.array(y, dtype=object)
    return array


def suggested_rows(suggested: Any, labels: Tensor) -> tuple[int, ...]:
    """Which of the row numbers ``suggested`` have a label; ``labels`` (N,) are class numbers, -1 for none."""
    import numpy as np

    rows = np.asarray(suggested)
    if rows.size and (rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(labels)):
        raise InputError(f"suggested must be row numbers from 0 to {len(labels) - 1}, as suggest(...).rows.")
    return tuple(row for row in rows.tolist() if labels[row] >= 0)


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
