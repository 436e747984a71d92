"""Runs say of which format they are, and runs of another one what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.command import semimetric
from helpers.sealed import reseal
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.core.errors import RunError
from semimetric.model.folder import FORMAT

pytestmark = pytest.mark.filterwarnings(
    "ignore::semimetric.estimators.runs.VersionWarning", "ignore:Pseudo-label accuracy cannot be estimated"
)


@pytest.mark.parametrize("written", [1, 3, FORMAT + 1, None])
def test_a_run_of_another_format_is_refused_by_its_name(tmp_path: Path, written: int | None) -> None:
    features, classes = load_wine(return_X_y=True)
    run, data = tmp_path / "run", tmp_path / "wine.npz"
    np.savez(data, X=features, y=np.where(np.arange(178) % 4 == 0, classes, -1))
    assert semimetric("fit", data, "--method", "lrml", "-o", run).code == 0
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"format": written, "version": "9.9"}))
    reseal(run)
    found = rf"{run} has the run format {written}, and semimetric .* reads format {FORMAT}\. Fit it again, .*9\.9"
    with pytest.raises(RunError, match=found):
        sm.load(run)
    for words in (("info", run), ("evaluate", run), ("fit", data, "--method", "lrml", "-o", run, "--resume")):
        assert re.search(found, semimetric(*words).sentence())


def test_every_config_says_its_format_its_kind_and_all_settings(tmp_path: Path) -> None:
    features, classes = load_wine(return_X_y=True)
    labels = np.where(np.arange(178) % 4 == 0, classes, -1)
    np.savez(tmp_path / "wine.npz", X=features, y=labels)
    quick = ["--epochs", 1, "--passes", 1]
    assert semimetric("fit", tmp_path / "wine.npz", "--out", tmp_path / "own data", *quick).code == 0
    assert semimetric("fit", "--out", tmp_path / "benchmark", *quick).code == 0
    sm.save(sm.SemiMetric(epochs=1, random_state=0).fit(features, labels), tmp_path / "estimator")
    for kind in ("own data", "benchmark", "estimator"):
        config = json.loads((tmp_path / kind / "config.json").read_text())
        assert (config["format"], config["kind"]) == (FORMAT, kind)
        plan = config["plan"]
        assert (plan["method"], plan["training"]["epochs"], plan["training"]["optimizer"]) == ("consensus", 1, "adamw")
        assert plan["method_settings"]["k"] > 0
        loaded = sm.load(tmp_path / kind)
        assert loaded.plan_.as_dict() == plan
        assert loaded.get_params()["epochs"] == 1


def test_show_settings_prints_the_plan_that_a_run_keeps(tmp_path: Path) -> None:
    features, classes = load_wine(return_X_y=True)
    np.savez(tmp_path / "wine.npz", X=features, y=np.where(np.arange(178) % 4 == 0, classes, -1))
    for source in ([tmp_path / "wine.npz"], ["--dataset", "digits"]):
        words = ["fit", *source, "--epochs", 1, "--passes", 1, "--out", tmp_path / f"run{len(source)}"]
        shown = semimetric(*words, "--show-settings", "--json")
        assert not (tmp_path / f"run{len(source)}").exists()
        assert semimetric(*words).code == 0
        config = json.loads((tmp_path / f"run{len(source)}" / "config.json").read_text())
        assert shown.json() == config["plan"]


def test_the_estimator_of_a_run_of_the_command_line_fits_the_same_again(tmp_path: Path) -> None:
    features, classes = load_wine(return_X_y=True)
    labels = np.where(np.arange(178) % 4 == 0, classes, -1)
    np.savez(tmp_path / "wine.npz", X=features, y=labels)
    assert semimetric("fit", tmp_path / "wine.npz", "--out", tmp_path / "run", "--epochs", 2).code == 0
    model = sm.load(tmp_path / "run")
    again = type(model)(**model.get_params()).fit(features.astype(np.float32), labels)
    np.testing.assert_allclose(again.embedding_, model.embedding_, atol=1e-6)
