from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from semimetric.data.collection import label_texts
from semimetric.data.labels import LabelWarning, is_binary, is_labelled, number_labels


class Missing:
    """Looks as the missing value of pandas does, which cannot be compared."""

    def __repr__(self) -> str:
        return "<NA>"

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]


NAN = float("nan")


@pytest.mark.parametrize(
    ("y", "classes", "numbers"),
    [
        ([5, -1, 3, 5], [3, 5], [1, -1, 0, 1]),
        ([-1, -1], [], [-1, -1]),
        ([0.0, NAN, 2.0, -1.0], [0.0, 2.0], [0, -1, 1, -1]),
        (["cat", "", "ant", "-1", "Unlabelled"], ["ant", "cat"], [1, -1, 0, -1, -1]),
        (["cat", "nan", "ant", "NaN", "<NA>"], ["ant", "cat"], [1, -1, 0, -1, -1]),
        (np.array(["b", None, "a", NAN, Missing(), -1], dtype=object), ["a", "b"], [1, -1, 0, -1, -1, -1]),
        (np.array([2, None, 1, -1], dtype=object), [1, 2], [1, -1, 0, -1]),
        (np.array([1, "a", "1"], dtype=object), ["1", "a"], [0, 1, 0]),
        ([True, False, True], [False, True], [1, 0, 1]),
        (np.array([True, None], dtype=object), [True], [0, -1]),
        (np.array([0, 255], dtype=np.uint8), [0, 255], [0, 1]),
        (torch.tensor([4, -1, 2]), [2, 4], [1, -1, 0]),
    ],
)
def test_classes_are_numbered_in_ascending_order(y: Any, classes: list[Any], numbers: list[int]) -> None:
    found, numbered = number_labels(y)
    assert found.tolist() == classes
    assert numbered.tolist() == numbers
    assert numbered.dtype == torch.int64


@given(st.lists(st.integers(-1, 5), max_size=20).filter(lambda y: set(y) != {-1, 1}))
def test_numbers_lead_back_to_labels(y: list[int]) -> None:
    classes, numbers = number_labels(np.array(y, dtype=int))
    assert [-1 if number < 0 else classes[number] for number in numbers] == y


def test_minus_one_and_one_are_the_classes_of_a_binary_problem() -> None:
    with pytest.warns(LabelWarning, match="taken for two classes.*label examples of another class"):
        classes, numbers = number_labels([1, -1, 1])
    assert classes.tolist() == [-1, 1]
    assert numbers.tolist() == [1, 0, 1]
    assert is_binary(np.array([-1.0, 1.0]))
    assert not is_binary([-1, -1])
    assert not is_binary([-1, 0, 1])
    assert not is_binary(["-1", "1"])


def test_placeholders_are_no_class_and_told() -> None:
    with pytest.warns(LabelWarning, match=r"unlabelled, by their label: 'unknown' \(2\), '\?' \(1\). Rename"):
        classes, numbers = number_labels(["cat", "unknown", "dog", "unknown", "?", ""])
    assert classes.tolist() == ["cat", "dog"]
    assert numbers.tolist() == [0, -1, 1, -1, -1, -1]


def test_targets_of_regression_are_refused() -> None:
    with pytest.raises(ValueError, match="continuous"):
        number_labels([0.5, 1.5, -1])


def test_a_column_is_taken_with_the_warning_of_scikit_learn() -> None:
    with pytest.warns(DataConversionWarning):
        assert number_labels(np.array([[3], [4]]))[1].tolist() == [0, 1]


def test_which_entries_have_a_label() -> None:
    assert is_labelled([0, -1, 2]).tolist() == [True, False, True]
    assert is_labelled([0.0, NAN]).tolist() == [True, False]
    assert is_labelled(np.array(["a", "", None, 7, -1], dtype=object)).tolist() == [True, False, False, True, False]


@pytest.mark.parametrize(
    "cell", ["", "-1", "nan", "NaN", "<NA>", "unknown", "Unknown ", "?", "0", "None", "n/a", "TBD", "misc", "other"]
)
def test_a_cell_of_a_table_and_an_entry_of_an_array_mean_the_same(cell: str) -> None:
    assert (label_texts([cell, "cat"])[0] is not None) == bool(is_labelled([cell, "cat"])[0])
