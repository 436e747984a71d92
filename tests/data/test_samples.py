from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semimetric.core.errors import InputError
from semimetric.data.samples import images, is_paths, photographs, vectors


class Column:
    """A column of a table: a length, one dimension, and its values."""

    ndim = 1

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Any:
        return iter(self._values)


@pytest.mark.parametrize(
    "values", [["a.png", "b.png"], ("a.png",), [Path("a")], np.array(["a", "b"]), Column(["a.png", "b.png"])]
)
def test_sequences_of_paths_are_told(values: Any) -> None:
    assert is_paths(values)
    assert photographs(values).paths == tuple(Path(value) for value in values)


@pytest.mark.parametrize(
    "values",
    [[[1.0, 2.0]], [], np.zeros((2, 3)), np.array([["a", "b"]]), torch.zeros(2, 3), torch.zeros(3), [1, 2], iter("ab")],
)
def test_anything_else_is_no_paths(values: Any) -> None:
    assert not is_paths(values)


@pytest.mark.parametrize("value", ["photo.png", Path("photo.png"), b"photo.png"])
def test_a_single_path_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"the single path .*photo\.png.*Put it in a list.*read_collection"):
        is_paths(value)


def test_photographs_are_paths_alone() -> None:
    samples = photographs(["a.png", Path("b.png")])
    assert samples.kind == "photographs"
    assert samples.shape() == ()
    assert len(samples) == 2
    with pytest.raises(InputError, match=r"paths alone, but one entry is 3\."):
        photographs(["a.png", 3])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 8, 9), (1, 8, 9)),
        ((4, 3, 8, 9), (3, 8, 9)),
        ((4, 8, 9, 3), (3, 8, 9)),
        ((4, 8, 9, 1), (1, 8, 9)),
        ((4, 12, 8, 9), (12, 8, 9)),
        ((4, 1, 8, 3), (1, 8, 3)),
    ],
)
def test_images_in_any_order_of_axes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    samples = images(np.zeros(shape, dtype=np.uint8))
    assert samples.kind == "images"
    assert samples.shape() == expected
    assert samples.tensor.dtype == torch.uint8
    assert samples.tensor.is_contiguous()


def test_channels_move_with_their_values() -> None:
    last = torch.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3)
    assert torch.equal(images(last).tensor, last.permute(0, 3, 1, 2).float())


def test_images_keep_bytes_and_floats_and_other_whole_numbers_become_floats() -> None:
    assert images(torch.zeros(2, 8, 8, dtype=torch.float64)).tensor.dtype == torch.float64
    assert images(torch.zeros(2, 8, 8, dtype=torch.int32)).tensor.dtype == torch.float32


def test_arrays_that_are_no_images_are_refused() -> None:
    with pytest.raises(InputError, match=r"got an array of shape \(2, 1, 3, 4, 5\)"):
        images(np.zeros((2, 1, 3, 4, 5)))
    with pytest.raises(InputError, match=r"images of numbers, got torch\.bool"):
        images(torch.zeros(2, 8, 8, dtype=torch.bool))
    with pytest.raises(InputError, match=r"images of numbers, got torch\.complex64"):
        images(torch.zeros(2, 8, 8, dtype=torch.complex64))
    spoiled = torch.zeros(3, 8, 8)
    spoiled[1, 2, 3] = torch.nan
    with pytest.raises(InputError, match=r"X has NaN or infinite values in 1 of 3 rows \(rows 1\)"):
        images(spoiled)


def test_vectors_are_floating_point() -> None:
    assert vectors(np.ones((2, 3), dtype=np.float32)).tensor.dtype == torch.float32
    samples = vectors([[1, 2], [3, 4]])
    assert samples.kind == "vectors"
    assert samples.tensor.dtype == torch.float64
    assert samples.shape() == (2,)
    assert len(samples) == 2
