"""Findings of an attack on the whole tool that no other test file has."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import damage
from helpers.command import semimetric
from helpers.sealed import reseal
from safetensors import safe_open
from safetensors.torch import save_file

import semimetric as sm
from semimetric.core.errors import InputError, RunError
from semimetric.data import read_collection
from semimetric.data.readers import arrays
from semimetric.encoders.weights import read_weights

pytestmark = pytest.mark.filterwarnings("ignore:.*")
AGAIN = ["--epochs", 1, "--passes", 1, "--encoder", "linear", "--threads", 1]


@pytest.fixture
def home(home: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(home, tmp_path / "home"))


@pytest.mark.parametrize(
    "state", [{"epoch": []}, {"run": "x", "epoch": None}, None, {"epoch": 0, "seconds": 0, "guards": 3, "trust": 1}]
)
def test_a_checkpoint_that_says_something_else_is_refused(home: Path, state: object) -> None:
    path = home / "net" / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"state": json.dumps(state)})
    reseal(home / "net")
    said = semimetric("fit", home / "wine.npz", *AGAIN, "-o", home / "net", "--resume").sentence()
    assert "checkpoint.safetensors is damaged" in said


def test_a_pipe_in_place_of_the_log_does_not_hang(home: Path) -> None:
    (home / "net" / "metrics.jsonl").unlink()
    os.mkfifo(home / "net" / "metrics.jsonl")
    said = semimetric("fit", home / "wine.npz", *AGAIN, "-o", home / "net", "--resume").sentence()
    assert "metrics.jsonl is damaged: it is missing" in said


def test_a_small_archive_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "LARGEST_UNPACKED", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", X=np.zeros((100_000, 8)))
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 16
    with pytest.raises(InputError, match=r"unpacks to 0\.0 GiB, more than 100 times its own size"):
        read_collection(tmp_path / "bomb.npz")


def test_a_file_of_others_is_not_taken_for_an_index(home: Path) -> None:
    (home / "x.faiss").write_text("mine")
    assert "exists" in semimetric("index", home / "run", "--to", home / "x.faiss").sentence()
    assert (home / "x.faiss").read_text() == "mine"


def test_files_of_others_in_a_folder_of_milvus_stay(home: Path) -> None:
    pytest.importorskip("milvus_lite", reason="the extra milvus is not installed")
    mine = home / "x.db" / "collections" / "semimetric" / "mine.txt"
    mine.parent.mkdir(parents=True)
    (home / "x.db" / "LOCK").touch()
    mine.write_text("mine")
    for option in ((), ("--replace",)):
        assert "is no file of Milvus" in semimetric("index", home / "run", "--to", home / "x.db", *option).sentence()
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("examples.json", "[" * 100_000, "nested too deeply"),
        ("examples.json", '{"names": [[1], {}], "classes": []}', "is damaged"),
        ("model.json", '{"shape": [1000000000000], "inputs": [1000000000000]}', "does not fit its network"),
    ],
)
def test_json_that_says_something_else_is_a_sentence(home: Path, name: str, content: str, told: str) -> None:
    path = home / "net" / name
    before = {} if content.startswith("[") else json.loads(path.read_text())
    path.write_text(content if content.startswith("[") else json.dumps(before | json.loads(content)))
    reseal(home / "net")
    said = semimetric("suggest", home / "net", "-n", 1).sentence()
    assert told in said


def test_a_damaged_line_of_the_log_is_refused(home: Path) -> None:
    log = home / "net" / "metrics.jsonl"
    log.write_text(f"{{broken\n{log.read_text()}")
    reseal(home / "net")
    said = semimetric("fit", home / "wine.npz", *AGAIN, "-o", home / "net", "--resume").sentence()
    assert "metrics.jsonl is damaged in line 1" in said


def test_arguments_of_other_types_are_refused_by_a_sentence(home: Path) -> None:
    for call in (lambda: sm.nearest_neighbors(np.eye(5), k="3"), lambda: sm.Metric(np.eye(2))):
        with pytest.raises(InputError):
            call()
    fit = ("fit", home / "wine.npz", *AGAIN, "--lr", 1e300, "-o", home / "large")
    assert semimetric(*fit).sentence()


@pytest.mark.parametrize("suffix", [".pth", ".npz", ".safetensors"])
def test_random_weights_files_are_refused(tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole{suffix}"
    if suffix == ".pth":
        torch.save({"a": torch.ones(3)}, whole)
    elif suffix == ".npz":
        np.savez(whole, a=np.ones(3))
    else:
        save_file({"a": torch.ones(3)}, whole)
    draw, refused = random.Random(0), 0
    for _ in range(80):
        (tmp_path / f"broken{suffix}").write_bytes(damage.damaged(whole.read_bytes(), draw))
        try:
            read_weights(tmp_path / f"broken{suffix}")
        except InputError:
            refused += 1
    assert refused > 20


def test_an_index_that_was_sealed_again_is_refused_or_answers(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="the extra faiss is not installed")
    from semimetric.search import FaissIndex
    from semimetric.search.faiss_index import _MARK

    points = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    FaissIndex.build(points, "hnsw").save(tmp_path / "x.faiss")
    whole, draw, refused = (tmp_path / "x.faiss").read_bytes()[: -len(_MARK) - 32], random.Random(0), 0
    for _ in range(150):
        content = damage.flipped(whole, draw)
        (tmp_path / "y.faiss").write_bytes(content + _MARK + hashlib.sha256(content).digest())
        try:
            assert len(FaissIndex.load(tmp_path / "y.faiss")) > 0
        except RunError:
            refused += 1
    assert refused > 5
