from __future__ import annotations

import multiprocessing
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("pymilvus", reason="needs semimetric[milvus]")
pytest.importorskip("milvus_lite", reason="needs semimetric[milvus]")

from helpers.milvus import contents, load

from semimetric.search import MilvusIndex

ROWS = 3000
NAMES = [f"photo {row}.jpg" for row in range(ROWS)]


@pytest.fixture
def processes():
    """New processes that begin to load at once, and not after seconds of imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["semimetric.search", "pymilvus", "milvus_lite.adapter.grpc.server"])
    return context


def loading(processes, folder: Path, points: torch.Tensor) -> multiprocessing.process.BaseProcess:
    """A process that has just begun to load."""
    begun = processes.Event()
    process = processes.Process(target=load, args=(folder, points.numpy(), NAMES, begun))
    process.start()
    assert begun.wait(60)
    return process


def kill_after(process: multiprocessing.process.BaseProcess, seconds: float) -> bool:
    """Whether the process was still at it."""
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_loads_end_as_an_undisturbed_one(tmp_path: Path, make_clusters, processes, kills: int) -> None:
    points = make_clusters(0, ROWS, 16, 10)[0]
    for folder in (tmp_path / "warm.db", tmp_path / "whole.db"):
        undisturbed = loading(processes, folder, points)
        began = time.monotonic()
        undisturbed.join()
        lasts = time.monotonic() - began
        assert undisturbed.exitcode == 0
    whole = contents(tmp_path / "whole.db", "run")
    assert [(row["row"], row["name"]) for row in whole] == list(enumerate(NAMES))

    moments, struck = random.Random(0), 0
    while struck < kills:
        folder = Path(tempfile.mkdtemp(dir=tmp_path)) / "killed.db"
        while struck < kills and kill_after(loading(processes, folder, points), moment := moments.uniform(0, lasts)):
            struck += 1
        lasts = min(lasts, moment) if struck < kills else lasts  # it ended by then: the machine was busier before
        with MilvusIndex(folder, "run", 16) as index:
            index.load(points, NAMES, batch_size=50)
            assert len(index) == ROWS
            assert index.search(points[:30], 1).rows.flatten().tolist() == list(range(30))
        assert contents(folder, "run") == whole
