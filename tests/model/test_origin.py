"""Files that a run names are opened only if this user on this machine made the run, or names them too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.command import semimetric
from helpers.own_photos import write_folder
from helpers.sealed import reseal
from sklearn.datasets import load_wine

from semimetric.core import origin
from semimetric.core.errors import InputError
from semimetric.model.folder import load_run
from semimetric.pipeline.warm import read_start
from semimetric.serve.page.again import check_can_learn, learn_again
from semimetric.serve.pictures import open_pictures

pytestmark = pytest.mark.filterwarnings("ignore:Pseudo-label accuracy cannot be estimated")
NETWORK = ["--epochs", 1, "--passes", 1, "--encoder", "linear", "--threads", 1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and a run on it."""
    home = tmp_path_factory.mktemp("home")
    features, classes = load_wine(return_X_y=True)
    np.savez(home / "wine.npz", X=features[::4], y=np.where(np.arange(45) % 3 == 0, classes[::4], -1))
    np.savez(home / "more.npz", X=features[1::4][:5], y=np.full(5, -1))
    assert semimetric("fit", home / "wine.npz", *NETWORK, "-o", home / "run").code == 0
    return home


def changed(run: Path, name: str, change: dict[str, object]) -> None:
    """What a stranger can write."""
    path = run / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    reseal(run)


def refused(run: Path) -> bool:
    return "not made by you on this machine" in open_pictures(load_run(run)).missing


def test_a_run_that_was_made_here_shows_its_examples(home: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(home / "run", tmp_path / "moved")
    assert open_pictures(load_run(moved)).features is not None
    added = semimetric("add", moved, home / "more.npz", "--json")
    assert added.code == 0, added.err
    assert "are not in their source any more" in open_pictures(load_run(moved)).missing  # opened, without the new rows


@pytest.mark.parametrize("what", ["source", "names", "no seal", "another seal", "another machine"])
def test_a_run_of_others_does_not_decide_what_is_opened(
    home: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    if what == "source":
        shutil.copy(home / "wine.npz", tmp_path / "wine.npz")
        changed(run, "examples.json", {"source": str(tmp_path / "wine.npz")})
    elif what == "names":
        names = json.loads((run / "examples.json").read_text())["names"]
        changed(run, "examples.json", {"names": ["/etc/passwd", *names[1:]]})
    elif what == "no seal":
        (run / "origin.json").unlink()
        reseal(run)
    elif what == "another seal":
        changed(run, "origin.json", {"places": ["é", None, 3, "0" * 64], "files": {}})
    else:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    assert refused(run)
    if what != "names":
        assert open_pictures(load_run(run), source=home / "wine.npz").features is not None
        with pytest.raises(InputError, match="--source PATH"):
            check_can_learn(load_run(run), None)
    assert not (tmp_path / "elsewhere").exists()


def test_added_examples_of_a_stranger_do_not_become_ours(home: Path, tmp_path: Path) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    changed(run, "examples.json", {"source": "/etc/passwd"})
    assert semimetric("add", run, home / "more.npz").code == 0
    assert refused(run)


def test_weights_that_a_run_of_others_names_are_not_opened(home: Path, tmp_path: Path) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    plan = json.loads((run / "config.json").read_text())["plan"]
    plan["network"] |= {"encoder": "googlenet", "weights": "/etc/passwd", "preprocess": "imagenet"}
    changed(run, "config.json", {"plan": plan})
    with pytest.raises(InputError, match="names the weights '/etc/passwd', and it was not made by you"):
        read_start(run).settings(())
    with pytest.raises(InputError, match="names the file '/etc/passwd'"):
        check_can_learn(load_run(run), home / "wine.npz")
    assert read_start(run).settings(["weights"])["weights"] == "/etc/passwd"  # the user's own goes over it


def test_a_run_of_others_learns_again_from_the_source_that_the_user_names(home: Path, tmp_path: Path) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    changed(run, "examples.json", {"source": "/etc/passwd"})
    labels = [str(row % 2) for row in range(45)]
    learn_again(run, labels, tmp_path / "again", source=home / "wine.npz")
    assert load_run(tmp_path / "again").fitted.examples.source == str(home / "wine.npz")
    assert not refused(tmp_path / "again")


def test_photographs_whose_names_lead_out_of_the_folder_are_not_learned_from(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", 2, 1)
    fit = ("fit", photos, "--epochs", 1, "--passes", 1, "--encoder", "small-cnn", "--side", 16, "-o", tmp_path / "run")
    assert semimetric(*fit).code == 0
    names = json.loads((tmp_path / "run" / "examples.json").read_text())["names"]
    changed(tmp_path / "run", "examples.json", {"names": [f"../photos/{names[0]}", *names[1:]]})
    with pytest.raises(InputError, match="1 examples have names that lead out of --source"):
        learn_again(tmp_path / "run", [None] * len(names), tmp_path / "again", source=photos)


def test_the_key_is_made_once_and_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert not origin.was_sealed_here("", {})
    assert not list(tmp_path.iterdir())
    seal = origin.seal_of({"a": 1})
    assert origin.was_sealed_here(seal, {"a": 1})
    assert not origin.was_sealed_here(seal, {"a": 2})
    (key,) = (tmp_path / "semimetric").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    assert origin.seal_of({"a": 1}) == seal
    key.write_bytes(b"short")
    assert origin.seal_of({"a": 1}) is None
    monkeypatch.setenv("XDG_STATE_HOME", str(key))
    assert origin.seal_of({"a": 1}) is None
