"""What a user's X may be: feature vectors, images in memory, or paths of photographs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_finite
from semimetric.core.errors import InputError
from semimetric.data.schema import Schema

Kind = Literal["vectors", "images", "photographs"]

_CHANNELS, _WITH_TRANSPARENCY = (1, 3), (2, 4)


@dataclass(frozen=True)
class Samples:
    """Examples of one kind: vectors (N, d), images (N, C, H, W), or the paths of photographs.

    ``schema`` tells how the columns of a table became vectors.
    """

    kind: Kind
    values: Tensor | tuple[Path, ...]
    schema: Schema | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def tensor(self) -> Tensor:
        """The vectors or images; photographs have to be read first."""
        assert isinstance(self.values, Tensor)
        return self.values

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of photographs."""
        assert not isinstance(self.values, Tensor)
        return self.values

    def shape(self) -> tuple[int, ...]:
        """Of one example; none of photographs, which are of all shapes."""
        return tuple(self.values.shape[1:]) if isinstance(self.values, Tensor) else ()


def is_paths(values: Any) -> bool:
    """Whether this is a sequence of paths (a list, a tuple, a column of a table) rather than numbers."""
    if isinstance(values, str | bytes | os.PathLike):
        raise InputError(
            f"X must be a sequence of paths, got the single path {str(values)!r}. Put it in a list; a folder is read "
            "by semimetric.read_collection."
        )
    if isinstance(values, Tensor) or getattr(values, "ndim", 1) != 1 or not hasattr(values, "__len__"):
        return False
    return len(values) > 0 and isinstance(next(iter(values)), str | os.PathLike)


def photographs(paths: Sequence[Any]) -> Samples:
    """Photographs by their paths."""
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"X must hold paths alone, but one entry is {path!r}. Leave out what is no path.")
    return Samples("photographs", tuple(Path(path) for path in paths))


def images(values: Any) -> Samples:
    """Images (N, C, H, W), or (N, H, W) of grey ones, or (N, H, W, C) with one or three channels."""
    tensor = as_tensor(values, "X")
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise InputError(f"X must be images of numbers, got {tensor.dtype}. Give uint8 or floating-point images.")
    if tensor.ndim == 3:
        tensor = tensor[:, None]
    if tensor.ndim != 4:
        raise InputError(
            "X must be vectors (N, d), images (N, H, W), (N, C, H, W) or (N, H, W, C), or paths; got an array of "
            f"shape {tuple(tensor.shape)}."
        )
    if tensor.shape[1] not in _CHANNELS and tensor.shape[3] in _CHANNELS:
        tensor = tensor.movedim(3, 1)
    if tensor.shape[1] not in _CHANNELS and tensor.shape[3] in _WITH_TRANSPARENCY:
        raise InputError(
            f"X has the shape {tuple(tensor.shape)}, as images with transparency in their last axis. Leave it out, or "
            "give the channels before height and width."
        )
    if tensor.is_floating_point():
        check_finite(tensor, "X")
    elif tensor.dtype != torch.uint8:
        tensor = tensor.float()
    return Samples("images", tensor.contiguous())


def vectors(values: Any) -> Samples:
    """Feature vectors (N, d), of finite numbers that have been checked."""
    tensor = as_tensor(values, "X")
    return Samples("vectors", tensor if tensor.is_floating_point() else tensor.double())
