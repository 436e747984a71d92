"""How many threads torch computes with on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let torch compute with ``count`` threads in the calling thread.

    ``torch.set_num_threads`` would also give that number to every thread that first computes meanwhile, for good. Its
    results could then differ in the last bit from those of another run.
    """
    before = torch.get_num_threads()
    _set(count)
    try:
        yield
    finally:
        _set(before)


def _set(count: int) -> None:
    set_here = _of_openmp()
    if set_here is not None:
        set_here(count)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


@cache
def _of_openmp() -> Callable[[int], None] | None:
    """``omp_set_num_threads`` of the library that torch is linked with; None where there is none."""
    with suppress(OSError, AttributeError):
        function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).omp_set_num_threads
        function.restype, function.argtypes = None, [ctypes.c_int]
        found: Callable[[int], None] = function
        return found
    return None
