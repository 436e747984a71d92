"""How many threads torch, BLAS and OpenMP compute with on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController, threadpool_limits

POOLS = ("OMP", "OPENBLAS", "MKL", "BLIS")
"""Libraries that read how many threads they may use from the environment when they are loaded."""


def bound_threads(count: int | None) -> int | None:
    """Let this process, and those that it starts, compute with ``count`` threads in each pool, and return it.

    Pools that are loaded later read the environment. None leaves everything as it is.
    """
    if count is not None:
        os.environ |= {f"{name}_NUM_THREADS": str(count) for name in POOLS} | {"MKL_DYNAMIC": "FALSE"}
        threadpool_limits(count)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(count)
    return count


def shared(change: Callable[[], AbstractContextManager[object]]) -> Callable[[], AbstractContextManager[None]]:
    """Decorate what changes the process: the first thread that comes enters ``change()``, the last that goes leaves."""
    lock, held, users = threading.Lock(), ExitStack(), 0

    @contextmanager
    def within() -> Iterator[None]:
        nonlocal users
        with lock:
            if not users:
                held.enter_context(change())
            users += 1
        try:
            yield
        finally:
            with lock:
                users -= 1
                if not users:
                    held.close()

    return within


@shared
@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS, which has one number of threads for the whole process, compute with one."""
    pools = _loaded()
    before = [pool.num_threads for pool in pools]
    _give(pools, [1] * len(pools))
    try:
        yield
    finally:
        _give(pools, before)


def _give(pools: list[Any], counts: list[int]) -> None:
    """Set the threads of each pool; threadpoolctl must forget who did, or it ignores all other threads."""
    for pool, count in zip(pools, counts, strict=True):
        pool.set_num_threads(count)
        getattr(pool, "clear_controlling_thread", bool)()


@cache
def _loaded() -> list[Any]:
    """BLAS of NumPy and SciPy, which the callers have loaded; to look for them takes a millisecond.

    BLAS on OpenMP is left out: it has a number for each thread, so that the last to leave could not give it back.
    """
    return list(ThreadpoolController().select(threading_layer=["pthreads", "intel", "gnu", "tbb"]).lib_controllers)


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let torch compute with ``count`` threads in the calling thread.

    ``torch.set_num_threads`` would also give that number to every thread that first computes meanwhile, for good. Its
    results could then differ in the last bit from those of another run.
    """
    import torch

    before = torch.get_num_threads()
    _set(count)
    try:
        yield
    finally:
        _set(before)


def _set(count: int) -> None:
    import torch

    set_here = _of_openmp()
    if set_here is not None:
        set_here(count)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


@cache
def _of_openmp() -> Callable[[int], None] | None:
    """``omp_set_num_threads`` of the library that torch is linked with; None where there is none."""
    import torch

    with suppress(OSError, AttributeError):
        function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).omp_set_num_threads
        function.restype, function.argtypes = None, [ctypes.c_int]
        found: Callable[[int], None] = function
        return found
    return None
