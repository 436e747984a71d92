"""Fits in threads, and a process forked after a fit."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.datasets import load_wine

import semimetric as sm

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*fork.*:DeprecationWarning")


def fitted(method: str, seed: int) -> np.ndarray:
    features, classes = load_wine(return_X_y=True)
    labels = np.where(np.arange(178) % 6 == 0, classes, -1)[::2]
    model = sm.SemiMetric(method=method, epochs=2, encoder="mlp", random_state=seed)
    return model.fit(features[::2], labels).embedding_


@pytest.mark.parametrize("method", ["consensus", "deepcluster", "synthetic"])
def test_fits_in_threads_are_those_of_one_after_the_other(method: str) -> None:
    alone = [fitted(method, seed) for seed in (0, 1)]
    together = Parallel(n_jobs=2, backend="threading")(delayed(fitted)(method, seed) for seed in (0, 1, 0, 1))
    for row, embedding in enumerate(together):
        np.testing.assert_array_equal(embedding, alone[row % 2])


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
        for _ in range(200):
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
