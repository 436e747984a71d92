"""Fits in threads, and a process forked after a fit."""

from __future__ import annotations

import os
import time
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.datasets import load_wine
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

import semimetric as sm
from semimetric.core.draws import turns
from semimetric.training import Silent

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*fork.*:DeprecationWarning")


class Waiting(Silent):
    """After each epoch, wait for the other fit to end one, too."""

    def __init__(self, barrier: Barrier) -> None:
        super().__init__()
        self.barrier = barrier

    def epoch(self, record: dict[str, Any]) -> None:
        self.barrier.wait(timeout=60)


def fitted(method: str, seed: int, meeting: Barrier | None = None, encoder: Any = "mlp") -> np.ndarray:
    features, classes = load_wine(return_X_y=True)
    labels = np.where(np.arange(178) % 6 == 0, classes, -1)[::2]
    model = sm.SemiMetric(method=method, epochs=2, encoder=encoder, random_state=seed)
    if meeting is not None:
        model._progress = lambda: Waiting(meeting)
    return model.fit(features[::2], labels).embedding_


@pytest.mark.parametrize("method", ["consensus", "deepcluster", "synthetic"])
def test_fits_in_threads_run_at_once_and_are_those_of_one_after_the_other(method: str) -> None:
    alone = [fitted(method, seed) for seed in (0, 1)]
    meeting = Barrier(2)
    together = Parallel(n_jobs=2, backend="threading")(delayed(fitted)(method, seed, meeting) for seed in (0, 1))
    for embedding, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(embedding, expected)


def with_dropout() -> nn.Sequential:
    with turns(0):
        return nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 8))


def test_fits_of_a_network_with_dropout_take_turns_and_are_those_of_one_after_the_other() -> None:
    alone = [fitted("consensus", seed, encoder=with_dropout()) for seed in (0, 1)]
    jobs = (delayed(fitted)("consensus", seed, encoder=with_dropout()) for seed in (0, 1, 0, 1))
    for row, embedding in enumerate(Parallel(n_jobs=2, backend="threading")(jobs)):
        np.testing.assert_array_equal(embedding, alone[row % 2])


def test_what_another_thread_draws_meanwhile_is_not_changed() -> None:
    with turns(3):
        fit = Thread(target=fitted, args=("consensus", 0))
        fit.start()
        drawn = []
        while fit.is_alive():
            drawn.append(torch.rand(()))
    with turns(3):
        assert drawn == [torch.rand(()) for _ in drawn]


@pytest.mark.slow
def test_fits_in_processes_are_those_of_one_after_the_other() -> None:
    alone = [fitted("consensus", seed) for seed in (0, 1)]
    for backend in ("loky", "multiprocessing"):
        together = Parallel(n_jobs=2, backend=backend)(delayed(alone_with_one_thread)(seed) for seed in (0, 1))
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_array_equal(one, other)


def alone_with_one_thread(seed: int) -> np.ndarray:
    torch.set_num_threads(1)
    return fitted("consensus", seed)


class Watching(Silent):
    """Notes the threads of every pool after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def epoch(self, record: dict[str, Any]) -> None:
        self.seen |= {torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())}


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
def test_a_fit_keeps_to_the_limits_of_threadpoolctl() -> None:
    features, classes = load_wine(return_X_y=True)
    labels = np.where(np.arange(178) % 6 == 0, classes, -1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for limit in (1, 2):
            model, watching = sm.SemiMetric("affinity-triplets", encoder="mlp", epochs=2, random_state=0), Watching()
            model._progress = lambda watching=watching: watching
            with threadpool_limits(limit):
                model.fit(features, labels)
            assert watching.seen == {limit}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_generator_of_torch_is_given_back() -> None:
    before = torch.get_rng_state()
    fitted("consensus", 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_process_that_is_forked_after_a_fit_answers() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        features, classes = load_wine(return_X_y=True)
        model = sm.SemiMetric(epochs=1, encoder="mlp").fit(features, np.where(np.arange(178) % 6 == 0, classes, -1))
        torch.ones(600, 600) @ torch.ones(600, 600)
        child = os.fork()
        if child == 0:
            model.predict(features)
            os._exit(7)
        for _ in range(900):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.1)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        assert os.waitstatus_to_exitcode(status) == 7
    finally:
        torch.set_num_threads(before)
