"""Runs of the previous format still load; runs of a later one say what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.command import semimetric
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.core.errors import RunError
from semimetric.model.folder import FORMAT

OLD = Path(__file__).parent / "format-1"
pytestmark = pytest.mark.filterwarnings(
    "ignore::semimetric.estimators.runs.VersionWarning", "ignore:Pseudo-label accuracy cannot be estimated"
)


@pytest.mark.parametrize("run", ["own-wine", "estimator-lrml"])
def test_runs_of_format_1_answer_as_the_version_that_wrote_them(run: str) -> None:
    expected = json.loads((OLD / "expected.json").read_text())[run]
    features, _ = load_wine(return_X_y=True)
    model = sm.load(OLD / run, device="cpu")
    np.testing.assert_allclose(model.transform(features[:3]), expected["embedding"], rtol=1e-9)
    assert [str(label) for label in model.predict(features[:5])] == expected["labels"]


def check_scores(found: dict[str, float]) -> None:
    """The scores that the run was written with; its NMI came from another k-means."""
    known = json.loads((OLD / "benchmark-digits" / "result.json").read_text())["final"]
    assert found.pop("nmi") == pytest.approx(known.pop("nmi"), abs=0.02)
    assert found == pytest.approx(known)


def test_a_benchmark_of_format_1_has_a_plan_and_is_scored() -> None:
    model = sm.load(OLD / "benchmark-digits", device="cpu")
    assert model.plan_ is not None
    assert (model.plan_.dataset, model.plan_.split.labels_per_class) == ("digits", 5)
    params = model.get_params()
    assert (params["method"], params["encoder"], params["n_components"], params["epochs"]) == (
        "affinity-triplets",
        "linear",
        4,
        1,
    )
    check_scores(semimetric("evaluate", OLD / "benchmark-digits", "--json").json()["scores"])


def test_a_run_of_format_1_is_searched_and_not_continued(tmp_path: Path) -> None:
    features, _ = load_wine(return_X_y=True)
    np.save(tmp_path / "some.npy", features[:3])
    hits = semimetric("search", OLD / "own-wine", tmp_path / "some.npy", "-k", 1, "--json").json()["hits"]
    assert [line[0]["distance"] for line in hits.values()] == pytest.approx([0.0] * 3, abs=1e-12)
    shutil.copytree(OLD / "own-wine", tmp_path / "run")
    np.savez(tmp_path / "wine.npz", X=features, y=np.where(np.arange(178) % 4 == 0, 1, 0))
    again = semimetric("fit", tmp_path / "wine.npz", "--encoder", "linear", "--out", tmp_path / "run", "--resume")
    assert "loads but cannot continue" in again.sentence()
    sm.save(sm.load(OLD / "own-wine"), tmp_path / "copy")
    np.testing.assert_array_equal(sm.load(tmp_path / "copy").embedding_, sm.load(OLD / "own-wine").embedding_)


def test_an_interrupted_benchmark_of_format_1_is_scored(tmp_path: Path) -> None:
    shutil.copytree(OLD / "benchmark-digits", tmp_path / "run")
    for name in ("model.json", "examples.json", "examples.safetensors", "result.json"):
        (tmp_path / "run" / name).unlink()
    check_scores(semimetric("evaluate", tmp_path / "run", "--json").json()["scores"])


def test_a_run_of_a_later_format_names_the_version_that_reads_it(tmp_path: Path) -> None:
    shutil.copytree(OLD / "estimator-lrml", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"format": FORMAT + 1, "version": "9.9"}))
    with pytest.raises(RunError, match=rf"format {FORMAT + 1}, and semimetric .* reads formats 1, 2, {FORMAT}.*9\.9"):
        sm.load(tmp_path / "run")


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
