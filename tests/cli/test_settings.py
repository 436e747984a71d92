"""Which settings are in force: what the help says of them, --show-settings, --config and ``info``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command import semimetric
from helpers.own_photos import write_folder
from sklearn.datasets import load_wine

from semimetric.cli.info import _network as network_line
from semimetric.cli.main import COMMANDS
from semimetric.core.manifest import Manifest

QUICK = ("--epochs", 1, "--passes", 1)


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features, classes = load_wine(return_X_y=True)
    file = tmp_path_factory.mktemp("wine") / "wine.npz"
    np.savez(file, X=features, y=np.where(np.arange(178) % 4 == 0, classes, -1))
    return file


@pytest.fixture(scope="module")
def run(wine: Path) -> Path:
    folder = wine.parent / "run"
    assert semimetric("fit", wine, "--out", folder, *QUICK).code == 0
    return folder


def shown(*words: Any) -> str:
    done = semimetric("fit", *words, "--show-settings")
    assert done.code == 0, done.err
    return done.out


@pytest.mark.parametrize("words", [("--method", "lrml"), ("--lr", 0.5), ("--method", "affinity-triplets", "--seed", 3)])
def test_a_config_makes_the_settings_that_it_shows(wine: Path, words: tuple[Any, ...], tmp_path: Path) -> None:
    for source in ([wine], ["--dataset", "digits"]):
        text = shown(*source, *words)
        (tmp_path / "run.toml").write_text(text)
        own = [name for name in source if name != "--dataset" and name != "digits"]
        assert shown(*own, "--config", tmp_path / "run.toml") == text


def test_a_config_makes_the_network_of_photographs_again(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", labelled=2, unlabelled=0)
    text = shown(tmp_path / "photos", "--encoder", "small-cnn", "--side", 16)
    (tmp_path / "run.toml").write_text(text)
    assert shown(tmp_path / "photos", "--config", tmp_path / "run.toml") == text
    assert tomllib.loads(text)["side"] == 16


def test_options_win_over_the_config(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('method = "triplet"\nlr = 0.5\nlabels-per-class = 7\nnesterov = true\n')
    found = tomllib.loads(shown("--config", tmp_path / "run.toml", "--lr", 0.25, "--optimizer", "sgd"))
    assert [found[name] for name in ("method", "lr", "labels_per_class", "nesterov")] == ["triplet", 0.25, 7, True]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epoch = 3", "has a setting 'epoch' that this command does not know. Did you mean 'epochs'?"),
        ("epochs = 3.5", "epochs must be a whole number, got 3.5."),
        ("lr = true", "lr must be a number, got True."),
        ("method = 3", "method must be a text in quotes, got 3."),
        ("[training]\nlr = 1", "has a setting 'training' that this command does not know."),
        ("lr = ", "is no TOML file"),
    ],
)
def test_a_config_that_is_wrong_is_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    assert sentence in semimetric("fit", "--config", tmp_path / "run.toml", "--show-settings").sentence()
    assert "none.toml does not exist" in semimetric("fit", "--config", tmp_path / "none.toml").sentence()


def test_the_help_names_no_default_that_is_not_in_force(wine: Path) -> None:
    """A default of the help is the one of every source of data."""
    text = " ".join(semimetric("fit", "--method", "consensus", "--help").out.replace("│", " ").split())
    for source in ([wine], ["--dataset", "digits"], ["--dataset", "mnist"], ["--dataset", "cub200"]):
        options = ["--weights", "random"] if "cub200" in source else []
        for name, value in tomllib.loads(shown(*source, *options)).items():
            if name == "dataset":
                continue
            told = text.partition(f" --{name.replace('_', '-')} ")[2].partition(" --")[0]
            default = told.partition("(Default ")[2].partition(".)")[0]
            assert default in ("", str(value), "none" if value == "" else None), (source, name, default)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_knows_h(name: str) -> None:
    done = semimetric(name, "-h")
    assert done.code == 0
    assert done.out == semimetric(name, "--help").out


def test_info_says_what_a_run_is(run: Path, wine: Path) -> None:
    found = semimetric("info", run, "--json").json()
    assert (found["kind"], found["finished"]) == ("own data", True)
    assert found["data"] == {
        "source": str(wine),
        "examples": 178,
        "added": 0,
        "labelled": 45,
        "unlabelled": 133,
        "columns": [],
        "classes": {"0": 15, "1": 18, "2": 12},
    }
    assert found["model"]["encoder"] == "mlp"
    assert found["settings"]["training"]["epochs"] == found["result"]["epochs"] == 1
    assert found["bytes"] == sum(file.stat().st_size for file in run.iterdir())
    assert found["versions"]["torch"]
    text = semimetric("info", run).out
    assert "178 examples, 45 labelled, 133 unlabelled" in text
    assert shown(wine, *QUICK) in text


@pytest.mark.parametrize(
    ("encoder", "weights", "backbone", "told"),
    [
        ("googlenet", "file.npz", "", "googlenet on 224 x 224 pixels (crop), fine-tuned"),
        ("googlenet", "random", "", "googlenet on 224 x 224 pixels (crop)"),
        ("linear", "file.npz", "googlenet", "googlenet on 224 x 224 pixels (crop), frozen, then linear"),
    ],
)
def test_info_says_what_was_trained(encoder: str, weights: str, backbone: str, told: str) -> None:
    model = {"encoder": encoder, "module": "", "backbone": backbone, "side": 224, "fit": "crop", "components": 8}
    assert network_line(model, weights) == f"{told}; embedding of 8 dimensions"


def test_info_of_a_run_that_has_not_ended(run: Path, tmp_path: Path) -> None:
    Manifest(tmp_path).put("config.json", (run / "config.json").read_bytes())
    done = semimetric("info", tmp_path)
    assert done.code == 0, done.err
    assert "not finished" in done.out


@pytest.fixture
def unread(tmp_path: Path) -> Path:
    """A table that is refused when it is read."""
    (tmp_path / "empty.csv").write_bytes(b"")
    return tmp_path / "empty.csv"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", -3], "epochs must be at least 0, got -3"),
        (["--side", 0], "side must be at least 1 pixel, but is 0"),
        (["--weights", "gone.npz"], "gone.npz does not exist"),
        (["--encoder", "resnet"], "encoder must be one of"),
        (["--frozen-share", 1.5], "frozen_share must be from 0 to below 1"),
        (["--preprocess", "magic"], "preprocess must be one of"),
        (["--margin", 0.5], "no setting 'margin'"),
        (["--seed", -1], "seed must be between 0"),
        (["--device", "tpu"], "device must be one of"),
        (["--patience", 3], "patience waits for a better score"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "tune"])
def test_settings_that_fit_no_data_are_refused_before_any_is_read(
    unread: Path, command: str, arguments: list[object], message: str
) -> None:
    done = semimetric(command, unread, "--out", unread.with_name("new"), *arguments)
    assert message in done.sentence()


def test_a_place_that_cannot_become_a_run_is_refused_before_data_is_read(unread: Path, run: Path) -> None:
    places = {run: "already holds a run", unread / "run": "empty.csv: it is a file"}
    for place, message in places.items():
        assert message in semimetric("fit", unread, "--out", place).sentence()
    assert "--out is missing" in semimetric("fit", unread).sentence()
    assert "empty.csv" in semimetric("fit", unread, "--out", unread.with_name("new")).sentence()
