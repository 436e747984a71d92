"""Whatever moment a command is killed at, the same command later ends as if nothing had happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.command import COMMAND, semimetric
from helpers.killed import Killer
from helpers.own_photos import write_folder
from safetensors.torch import load_file
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.serve.embed import CHUNK

KILLS = [3, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
METHODS = {
    "consensus": ["--epochs", 2, "--passes", 1],
    "affinity-triplets": ["--epochs", 2, "--lr", 1e-3, "--encoder", "mlp"],
    "lrml": [],
}


@pytest.fixture(scope="module")
def killer() -> Killer:
    return Killer(multiprocessing.get_context("forkserver"))


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 60 vectors, a few with a label."""
    features, classes = load_wine(return_X_y=True)
    path = tmp_path_factory.mktemp("wine") / "wine.npz"
    np.savez(path, X=features[::3], y=np.where(np.arange(60) % 3 == 0, classes[::3], -1))
    return path


def contents(run: Path) -> dict[str, Any]:
    """All that a run holds, apart from how long it took, and the digests of that."""
    held: dict[str, Any] = {}
    for path in sorted(path for path in run.iterdir() if path.name != "manifest.json"):
        if path.suffix == ".safetensors":
            held |= {f"{path.name} {name}": tensor for name, tensor in load_file(path).items()}
        elif path.suffix == ".jsonl":
            held[path.name] = [json.loads(line) | {"seconds": 0} for line in path.read_text().splitlines()]
        else:
            held[path.name] = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("seconds", "run")}
    return held


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        assert same, name


def some_of(changes: int) -> list[int]:
    """Some of so many moments, the first and the last among them; all with SEMIMETRIC_SLOW=1."""
    if os.environ.get("SEMIMETRIC_SLOW"):
        return list(range(1, changes + 1))
    return sorted({1, changes, *random.Random(changes).sample(range(1, changes + 1), 4)})


@pytest.mark.parametrize("kills", KILLS)
def test_a_fit_killed_at_any_moment_is_resumed(tmp_path: Path, killer: Killer, kills: int) -> None:
    photos = write_folder(tmp_path / "photos")
    fit = ["fit", photos, "--encoder", "small-cnn", "--side", 16, "--epochs", 4, "--passes", 3, "--resume", "--out"]
    killer.undisturbed(*fit, tmp_path / "warm", folder=tmp_path)
    lasts, _ = killer.undisturbed(*fit, tmp_path / "whole", folder=tmp_path)
    whole = contents(tmp_path / "whole")
    moments, struck = random.Random(0), 0
    while struck < kills:
        out = Path(tempfile.mkdtemp(dir=tmp_path)) / "run"
        while struck < kills and killer.after(moment := moments.uniform(0, lasts), *fit, out, folder=tmp_path):
            struck += 1
        lasts = min(lasts, moment) if struck < kills else lasts  # it ended by then: the machine was busier before
        assert semimetric(*fit, out).code == 0
        assert_same(contents(out), whole)
        assert sm.load(out).embedding_.shape == (38, 64)


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_killed_before_any_of_its_writes_is_resumed(
    tmp_path: Path, killer: Killer, wine: Path, method: str
) -> None:
    fit = ["fit", wine, "--method", method, *METHODS[method], "--resume", "--out"]
    _, changes = killer.undisturbed(*fit, tmp_path / "whole", folder=tmp_path)
    whole = contents(tmp_path / "whole")
    assert changes > (5 if method == "lrml" else 12)
    for number in some_of(changes):
        out = tmp_path / f"run {number}"
        killer.before_change(number, *fit, out, folder=tmp_path)
        told = semimetric(*fit, out)
        assert told.code == 0, (number, told.err)
        assert_same(contents(out), whole)


def test_a_fit_killed_again_and_again_gets_on(tmp_path: Path, killer: Killer, wine: Path) -> None:
    """Killed before the eighth write of every attempt, and a run that cannot be loaded meanwhile says so."""
    fit = ["fit", wine, *METHODS["consensus"], "--resume", "--out"]
    killer.undisturbed(*fit, tmp_path / "whole", folder=tmp_path)
    for _ in range(3):
        killer.before_change(8, *fit, tmp_path / "run", folder=tmp_path)
        refused = semimetric("suggest", tmp_path / "run").sentence()
        assert "training has not ended" in refused
    assert semimetric(*fit, tmp_path / "run").code == 0
    assert_same(contents(tmp_path / "run"), contents(tmp_path / "whole"))
    finished = semimetric(*fit, tmp_path / "run")
    assert finished.code == 0
    assert_same(contents(tmp_path / "run"), contents(tmp_path / "whole"))


def test_a_run_that_was_interrupted_then_resumed_and_killed_is_not_taken_for_whole(
    tmp_path: Path, killer: Killer, wine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = ["fit", wine, "--epochs", 4, "--passes", 1, "--resume", "--out"]
    killer.undisturbed(*fit, tmp_path / "whole", folder=tmp_path)
    train = sm.Trainer._train_epoch

    def interrupted(trainer: sm.Trainer) -> None:
        if trainer.epoch == 1:
            raise KeyboardInterrupt
        train(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(sm.Trainer, "_train_epoch", interrupted)
        done = semimetric(*fit, tmp_path / "run")
    assert done.code == 130
    assert "after epoch 1 the model so far is in" in done.err
    assert semimetric("suggest", tmp_path / "run", "-n", 1).code == 0
    killer.before_change(7, *fit, tmp_path / "run", folder=tmp_path)
    assert "are not those of its model" in semimetric("suggest", tmp_path / "run").sentence()
    assert semimetric(*fit, tmp_path / "run").code == 0
    assert_same(contents(tmp_path / "run"), contents(tmp_path / "whole"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, wine: Path) -> Path:
    """A run of vectors, and many new ones."""
    folder = tmp_path_factory.mktemp("many")
    assert semimetric("fit", wine, "--out", folder / "run", *METHODS["consensus"]).code == 0
    features = load_wine().data
    noise = np.random.default_rng(0).normal(size=(40 * CHUNK + 17, 13))
    np.save(folder / "new.npy", features.mean(0) + features.std(0) * noise)
    np.save(folder / "few.npy", features.mean(0) + features.std(0) * noise[: 2 * CHUNK + 5])
    return folder


def assert_embedded(out: Path, whole: Path, beside: set[str]) -> None:
    assert out.read_bytes() == whole.read_bytes()
    assert {path.name for path in out.parent.iterdir()} == {out.name, *beside}


@pytest.mark.parametrize("kills", KILLS)
def test_an_embedding_killed_at_any_moment_is_repeated(tmp_path: Path, killer: Killer, many: Path, kills: int) -> None:
    embed = ["embed", many / "run", many / "new.npy", "--replace", "--out"]
    whole = tmp_path / "whole.npy"
    killer.undisturbed(*embed, whole, folder=tmp_path)
    lasts, _ = killer.undisturbed(*embed, whole, folder=tmp_path)
    names = json.loads((tmp_path / "whole.npy.json").read_text())["names"]
    assert names == [f"row {row}" for row in range(40 * CHUNK + 17)]
    moments, struck = random.Random(1), 0
    while struck < kills:
        out = Path(tempfile.mkdtemp(dir=tmp_path)) / "out.npy"
        while struck < kills and killer.after(moment := moments.uniform(0, lasts), *embed, out, folder=tmp_path):
            struck += 1
        lasts = min(lasts, moment) if struck < kills else lasts
        assert semimetric(*embed, out).code == 0
        assert_embedded(out, whole, {"out.npy.json"})


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_an_embedding_killed_before_any_of_its_writes_is_repeated(
    tmp_path: Path, killer: Killer, many: Path, suffix: str
) -> None:
    embed = ["embed", many / "run", many / "few.npy", "--replace", "--out"]
    whole = tmp_path / f"whole{suffix}"
    _, changes = killer.undisturbed(*embed, whole, folder=tmp_path)
    assert changes > 10
    for number in some_of(changes):
        out = tmp_path / str(number) / f"out{suffix}"
        out.parent.mkdir()
        killer.before_change(number, *embed, out, folder=tmp_path)
        assert semimetric(*embed, out).code == 0
        assert_embedded(out, whole, {"out.npy.json"} if suffix == ".npy" else set())


def installed_and_killed(seconds: float, *arguments: object) -> bool:
    """Whether the installed command was still at it when it was killed."""
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    return process.returncode != 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", ["fit", "embed"])
def test_the_installed_command_stands_twenty_kills(tmp_path: Path, wine: Path, many: Path, command: str) -> None:
    fit = ["fit", wine, "--epochs", 100, "--resume", "--out"]
    arguments = fit if command == "fit" else ["embed", many / "run", many / "new.npy", "--replace", "--out"]
    name = "run" if command == "fit" else "out.npy"
    began = time.monotonic()
    assert not installed_and_killed(100, *arguments, tmp_path / name)
    lasts = time.monotonic() - began
    moments, struck = random.Random(2), 0
    while struck < 20:
        out = Path(tempfile.mkdtemp(dir=tmp_path)) / name
        while struck < 20 and installed_and_killed(moment := moments.uniform(0.4, 1.0) * lasts, *arguments, out):
            struck += 1
        lasts = min(lasts, moment) if struck < 20 else lasts
        assert semimetric(*arguments, out).code == 0
        if command == "fit":
            assert_same(contents(out), contents(tmp_path / name))
        else:
            assert_embedded(out, tmp_path / name, {"out.npy.json"})
