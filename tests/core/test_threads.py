"""Limits that hold for the whole process while anybody needs them."""

from __future__ import annotations

import os
from threading import Barrier, Thread

import numpy as np  # noqa: F401 - loads a BLAS
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from semimetric.core.threads import one_blas_thread

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")


def of_blas() -> set[int]:
    """Threads of the pools of NumPy and SciPy; FAISS, if another test has loaded it, has a BLAS on OpenMP."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {pool["num_threads"] for pool in pools if pool.get("threading_layer") != "openmp"}


def test_blas_has_one_thread_until_the_last_one_has_left() -> None:
    steps = [Barrier(2) for _ in range(3)]
    seen = []

    def other() -> None:
        steps[0].wait(60)
        with one_blas_thread():
            steps[1].wait(60)
            steps[2].wait(60)
            seen.append(of_blas())

    with threadpool_limits(2, user_api="blas"):
        assert of_blas() == {2}
        thread = Thread(target=other)
        thread.start()
        with one_blas_thread():
            steps[0].wait(60)
            steps[1].wait(60)
            with one_blas_thread():
                assert of_blas() == {1}
        assert of_blas() == {1}  # the other is still within
        steps[2].wait(60)
        thread.join()
        assert seen == [{1}]
        assert of_blas() == {2}
        with pytest.raises(ZeroDivisionError), one_blas_thread():
            raise ZeroDivisionError
        assert of_blas() == {2}
