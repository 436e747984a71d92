"""Damage of a run is found before it gives an answer, and nothing certifies what it cannot verify."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.command import semimetric
from helpers.sealed import reseal
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.core.errors import RunError
from semimetric.core.manifest import Manifest
from semimetric.model.folder import load_run
from semimetric.training import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")
FIT = ["--epochs", 2, "--passes", 1, "--threads", 1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and a run of it with a network."""
    folder = tmp_path_factory.mktemp("home")
    features, classes = load_wine(return_X_y=True)
    np.savez(folder / "wine.npz", X=features[::3], y=np.where(np.arange(60) % 3 == 0, classes[::3], -1))
    assert semimetric("fit", folder / "wine.npz", *FIT, "-o", folder / "run").code == 0
    return folder


def flipped(home: Path, tmp_path: Path, name: str) -> Path:
    """A copy of the run with one bit of one file flipped."""
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    content = bytearray((run / name).read_bytes())
    content[len(content) // 2] ^= 1
    (run / name).write_bytes(content)
    return run


@pytest.mark.parametrize("name", ["model.safetensors", "examples.safetensors"])
def test_damage_of_large_files_is_found_by_the_threads_that_digest_them(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("semimetric.core.manifest.LARGE", 1)
    assert load_run(home / "run", "cpu").fitted.labels.shape == (60,)
    with pytest.raises(RunError, match=f"{name} is damaged"):
        load_run(flipped(home, tmp_path, name), "cpu")


def test_long_steps_of_a_fit_without_a_network_are_named(home: Path, tmp_path: Path) -> None:
    done = semimetric("fit", home / "wine.npz", "--method", "lrml", "-o", tmp_path / "linear", "--verbose")
    assert "learning the metric of 13 features" in done.err
    assert "class probabilities of the examples" in done.err


def test_a_whole_run_is_whole(home: Path) -> None:
    found = semimetric("verify", home / "run", "--json").json()
    assert set(found["files"].values()) == {"whole"}
    assert {*found["files"], "manifest.json"} == {path.name for path in (home / "run").iterdir()}
    assert not found["unlisted"]


@pytest.mark.parametrize("name", ["examples.safetensors", "preprocess.safetensors", "examples.json", "result.json"])
def test_what_can_be_made_again_is_refused_and_then_made_again(home: Path, tmp_path: Path, name: str) -> None:
    run = flipped(home, tmp_path, name)
    assert f"{name} is damaged" in semimetric("suggest", run).sentence()
    told = semimetric("verify", run)
    assert told.code == 1
    assert f"--resume makes again: {name}" in told.out
    assert semimetric("fit", home / "wine.npz", *FIT, "-o", run, "--resume").code == 0
    assert semimetric("verify", run).code == 0
    before, after = ((folder / "examples.safetensors").read_bytes() for folder in (home / "run", run))
    assert before == after


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.safetensors", "metrics.jsonl", "config.json"])
def test_resume_certifies_nothing_that_it_cannot_verify(home: Path, tmp_path: Path, name: str) -> None:
    run = flipped(home, tmp_path, name)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert f"{name} is damaged" in semimetric("fit", home / "wine.npz", *FIT, "-o", run, "--resume").sentence()
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert semimetric("verify", run).code == 1


def test_a_damaged_or_missing_manifest_is_refused(home: Path, tmp_path: Path) -> None:
    run = flipped(home, tmp_path, "manifest.json")
    for words in (("suggest", run), ("verify", run), ("fit", home / "wine.npz", *FIT, "-o", run, "--resume")):
        assert "manifest.json" in semimetric(*words).sentence()
    (run / "manifest.json").unlink()
    for words in (("suggest", run), ("verify", run), ("fit", home / "wine.npz", *FIT, "-o", run, "--resume")):
        assert "can be verified" in semimetric(*words).sentence()


def test_a_linear_run_is_made_again(home: Path, tmp_path: Path) -> None:
    fit = ("fit", home / "wine.npz", "--method", "lrml", "-o", tmp_path / "run")
    assert semimetric(*fit).code == 0
    whole = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        sm.load(tmp_path / "run")
    assert semimetric(*fit, "--resume").code == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole


def test_a_later_manifest_names_the_version_that_wrote_it(home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["body"] |= {"format": 9, "version": "7.0"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert "does not fit its own checksum" in semimetric("verify", run).sentence()
    from semimetric.core import manifest as module

    manifest["sha256"] = module._digest_of(manifest["body"])
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert "the version that wrote it (7.0)" in semimetric("suggest", run).sentence()


def test_a_manifest_names_files_of_its_folder_only(home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    body = json.loads((run / "manifest.json").read_text())["body"]
    body["files"]["../secret"] = [1, "0"]
    from semimetric.core import manifest as module

    (run / "manifest.json").write_text(json.dumps({"body": body, "sha256": module._digest_of(body)}))
    assert "it lists no files" in semimetric("verify", run).sentence()


def test_files_that_are_written_later_are_listed(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    run = Run.open(tmp_path / "run")
    run.write("schema.json", {"a": 1})
    run.seal()
    assert Manifest(run.path).state("schema.json") == "whole"
    (run.path / "schema.json").write_text("{}")
    with pytest.raises(RunError, match=r"schema\.json is damaged"):
        run.read("schema.json")
    reseal(run.path)
    assert run.read("schema.json") == {}


def test_a_file_that_only_some_runs_have_is_missed(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    (tmp_path / "run" / "inputs.safetensors").unlink()
    assert "holds no inputs.safetensors" in semimetric("suggest", tmp_path / "run").sentence()
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    assert semimetric("verify", tmp_path / "run", "--json").code == 1


def test_half_a_line_of_the_log_is_no_damage(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    for epoch in range(2):
        run.log({"epoch": epoch})
    for cut in range(1, 8):
        whole = (run.path / "metrics.jsonl").read_bytes()
        (run.path / "metrics.jsonl").write_bytes(whole[:-cut])
        assert [record["epoch"] for record in run.history()] == [0]
        (run.path / "metrics.jsonl").write_bytes(whole)
    (run.path / "metrics.jsonl").write_bytes(whole[:3])
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged"):
        run.history()
