"""Precision of products of float32 matrices, which a process may lower for the sake of speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from semimetric.core.threads import shared


@shared
@contextmanager
def full_float32() -> Iterator[None]:
    """Products in float32 whatever the process has chosen, which holds again after the last thread that is within."""
    before = _chosen()
    _choose(["ieee", "ieee"] if isinstance(before, list) else "highest")
    try:
        yield
    finally:
        _choose(before)


def is_lowered_on_gpu() -> bool:
    """Whether the process has chosen TF32 for products on a GPU."""
    matmul: Any = torch.backends.cuda.matmul
    return str(matmul.fp32_precision) == "tf32" if _tells_backends() else bool(matmul.allow_tf32)


def _tells_backends() -> bool:
    """Whether this torch has a precision for each backend; its older settings then raise where those are in use."""
    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


def _backends() -> list[Any]:
    known: Any = torch.backends
    return [known.cuda.matmul, known.mkldnn.matmul]


def _chosen() -> list[str] | str:
    """The precision of each backend, or in an older torch that of all."""
    if _tells_backends():
        return [backend.fp32_precision for backend in _backends()]
    return str(torch.get_float32_matmul_precision())


def _choose(precision: list[str] | str) -> None:
    if isinstance(precision, str):
        torch.set_float32_matmul_precision(precision)
        return
    for backend, wanted in zip(_backends(), precision, strict=True):
        backend.fp32_precision = wanted
