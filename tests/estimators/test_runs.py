from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.command import semimetric
from helpers.own_photos import write_folder
from helpers.sealed import reseal
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.exceptions import NotFittedError
from torch import nn

import semimetric as sm
from semimetric.core.errors import InputError, RunError
from semimetric.encoders import build_encoder
from semimetric.encoders.googlenet import _names_here
from semimetric.estimators.base import MetricEstimator
from semimetric.estimators.runs import VersionWarning, estimator_of
from semimetric.model.folder import load_run
from semimetric.training import Run

pytestmark = [
    pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning"),
    pytest.mark.filterwarnings("ignore:.*no labels could be held out"),
    pytest.mark.filterwarnings("ignore:.*collapsing"),  # a random network sees hardly any difference to begin with
]

QUICK: dict[str, Any] = {"epochs": 2, "random_state": 0, "device": "cpu", "settings": {"passes": 1}}
Fitted = tuple[MetricEstimator, Any]


def own_network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(13, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.2), nn.Linear(20, 7))


def some_labels(classes: Any, every: int = 4) -> Any:
    return np.where(np.arange(len(classes)) % every == 0, classes, -1)


def of_wine(model: MetricEstimator) -> Fitted:
    features, classes = load_wine(return_X_y=True)
    return model.fit(features, some_labels(classes)), features


def of_digits() -> Fitted:
    images, classes = load_digits(return_X_y=True)
    images = images[:120].reshape(-1, 8, 8)
    return sm.SemiMetric(**QUICK).fit(images, some_labels(classes[:120])), images


def of_photographs(folder: Path, **changes: Any) -> Fitted:
    found = sm.read_collection(write_folder(folder, labelled=3, unlabelled=4))
    return sm.SemiMetric(**QUICK | changes).fit(found.paths, found.labels), found.paths


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of GoogLeNet's weights, random ones."""
    network = build_encoder("googlenet", (3, 64, 64), seed=0).state_dict()
    path = tmp_path_factory.mktemp("weights") / "googlenet.safetensors"
    save_file({theirs: network[ours].clone() for theirs, ours in _names_here(batch_norm=False).items()}, path)
    return path


KINDS: dict[str, Callable[[Path, Path], Fitted]] = {
    "vectors": lambda folder, weights: of_wine(sm.SemiMetric(**QUICK)),
    "principal components": lambda folder, weights: of_wine(sm.SemiMetric(n_components=5, **QUICK)),
    "linear metric": lambda folder, weights: of_wine(sm.SemiMetric("lrml", random_state=0)),
    "linear estimator": lambda folder, weights: of_wine(sm.ISDML(n_components=4)),
    "images": lambda folder, weights: of_digits(),
    "photographs": lambda folder, weights: of_photographs(folder, encoder="small-cnn", side=16),
    "described photographs": lambda folder, weights: of_photographs(folder, weights=weights, side=64),
    "fine-tuned": lambda folder, weights: of_photographs(folder, weights=weights, side=64, fine_tune=True),
    "own module": lambda folder, weights: of_wine(sm.SemiMetric(encoder=own_network(), **QUICK)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_run_is_the_estimator_that_was_saved(tmp_path: Path, weights: Path, kind: str) -> None:
    model, examples = KINDS[kind](tmp_path / "photos", weights)
    sm.save(model, tmp_path / "run")
    module = own_network() if kind == "own module" else None
    again = sm.load(tmp_path / "run", encoder=module, device="cpu")
    assert type(again) is type(model)
    for name in ("embedding_", "label_distributions_", "confidence_", "classes_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    np.testing.assert_array_equal(again.transform(examples), model.embedding_)
    np.testing.assert_array_equal(model.transform(examples), model.embedding_)
    np.testing.assert_array_equal(again.predict(examples), model.predict(examples))
    for mine, theirs in zip(again.kneighbors(examples[:3], 2), model.kneighbors(examples[:3], 2), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (again.n_features_in_, again.n_iter_) == (model.n_features_in_, model.n_iter_)
    if kind == "linear estimator":
        np.testing.assert_array_equal(again.components_, model.components_)
    if kind != "own module":
        assert again.get_params() == model.get_params() | (
            {"weights": str(weights)} if model.get_params().get("weights") else {}
        )


def test_what_was_loaded_can_be_saved_again(tmp_path: Path) -> None:
    model, features = of_wine(sm.LRML())
    sm.save(model, tmp_path / "first", names=[f"wine {row}" for row in range(len(features))])
    sm.save(sm.load(tmp_path / "first"), tmp_path / "second")
    np.testing.assert_array_equal(sm.load(tmp_path / "second").transform(features), model.embedding_)
    assert load_run(tmp_path / "first").fitted.examples.names[1] == "wine 1"
    assert load_run(tmp_path / "second").fitted.examples.names[1] == "1"


def test_suggested_labels_do_not_judge_and_are_kept(tmp_path: Path) -> None:
    features, classes = load_wine(return_X_y=True)
    labels = some_labels(classes)
    known = np.flatnonzero(labels >= 0)
    model = sm.SemiMetric(**QUICK).fit(features, labels, suggested=[*known[::2], 1])  # row 1 has no label
    trust = model.fitted_.facts["trust"]
    assert (trust["suggested"], trust["judged"]) == (len(known[::2]), 4)
    sm.save(model, tmp_path / "run")
    assert load_run(tmp_path / "run").fitted.examples.suggested == tuple(known[::2])
    with pytest.raises(InputError, match="suggested must be row numbers from 0 to 177"):
        sm.SemiMetric(**QUICK).fit(features, labels, suggested=[178])


def test_how_photographs_are_brought_to_a_square_is_kept(tmp_path: Path) -> None:
    model, paths = of_photographs(tmp_path / "photos", encoder="small-cnn", side=16)
    cropped = model.transform(paths)
    transform = dataclasses.replace(model.fitted_.model.transform, fit="squash")
    spec = dataclasses.replace(model.fitted_.spec, fit="squash")
    changed = dataclasses.replace(model.fitted_.model, transform=transform)
    model.fitted_ = dataclasses.replace(model.fitted_, model=changed, spec=spec)
    sm.save(model, tmp_path / "run")
    np.testing.assert_array_equal(sm.load(tmp_path / "run").transform(paths), model.transform(paths))
    assert np.abs(model.transform(paths) - cropped).max() > 1e-3


def test_settings_of_numpy_and_paths_are_kept(tmp_path: Path) -> None:
    settings = {"k": np.int64(4), "lr": np.float32(0.5)}
    model, _ = of_wine(sm.SemiMetric(**QUICK | {"settings": settings, "epochs": np.int64(1)}))
    sm.save(model, tmp_path / "run")
    params = sm.load(tmp_path / "run").get_params()
    assert params["settings"] == {"k": 4, "lr": 0.5}
    assert params["epochs"] == 1


def test_save_refuses(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        sm.save(sm.SemiMetric(), tmp_path / "run")
    model, _ = of_wine(sm.LRML())
    with pytest.raises(InputError, match="names must be of the 178 training examples"):
        sm.save(model, tmp_path / "run", names=["a"])
    assert not (tmp_path / "run").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="exists, and a run is never overwritten"):
        sm.save(model, tmp_path / "full")


def test_a_module_is_asked_for_where_it_is_needed_and_refused_where_it_is_not(tmp_path: Path) -> None:
    model, _ = of_wine(sm.SemiMetric(encoder=own_network(), **QUICK))
    sm.save(model, tmp_path / "run")
    with pytest.raises(InputError, match=r"a module of your own \(torch.nn.modules.container.Sequential\)"):
        sm.load(tmp_path / "run")
    with pytest.raises(RunError, match=r"model\.safetensors does not fit its network"):
        sm.load(tmp_path / "run", encoder=nn.Linear(13, 7))
    assert "encoder=module" in semimetric("suggest", tmp_path / "run").sentence()
    sm.save(of_wine(sm.LRML())[0], tmp_path / "linear")
    with pytest.raises(InputError, match="Pass no other"):
        sm.load(tmp_path / "linear", encoder=own_network())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of photographs."""
    folder = tmp_path_factory.mktemp("run")
    photos = write_folder(folder / "photos", labelled=3, unlabelled=4)
    arguments = ["--encoder", "small-cnn", "--side", 16, "--epochs", 2, "--passes", 1]
    assert semimetric("fit", photos, "--out", folder / "run", *arguments).code == 0
    return folder / "run"


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copied"))


FILES = ["config.json", "model.json", "model.safetensors", "preprocess.safetensors"]
FILES += ["examples.safetensors", "examples.json", "inputs.safetensors", "result.json"]
NO_CONTENT = [b"", b"{", b"[]", b"3", b"null", b'"text"', bytes(range(256)) * 9]


def commands(run: Path) -> list[list[object]]:
    photos, out = run.parent, run.parent / "out.csv"
    return [
        ["search", run, photos],
        ["embed", run, photos, "-o", out],
        ["predict", run, photos, "-o", out],
        ["suggest", run],
        ["index", run, "--to", run.parent / "index.faiss"],
        ["export", run, "--onnx"],
    ]


def test_all_files_of_a_run_are_known(run: Path) -> None:
    assert {path.name for path in run.iterdir()} == {
        *FILES,
        "metrics.jsonl",
        "checkpoint.safetensors",
        "manifest.json",
        "origin.json",
    }


@pytest.mark.parametrize("name", [name for name in FILES if name != "result.json"])
def test_a_file_that_was_lost_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(RunError, match=name.replace(".", r"\.")):
        sm.load(copied)
    for command in commands(copied):
        assert name in semimetric(*command).sentence()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", NO_CONTENT)
def test_a_file_that_is_damaged_is_named(copied: Path, name: str, content: bytes) -> None:
    (copied / name).write_bytes(content)
    with pytest.raises(RunError) as caught:
        sm.load(copied)
    assert name in str(caught.value)
    assert name in semimetric("suggest", copied).sentence()


def of_something_else(path: Path) -> Iterator[None]:
    """Write other tensors than there were to a file, one kind after the other."""
    tensors = load_file(path)
    for damage in (
        {},
        {"other": torch.zeros(3)},
        {name: tensor.flatten()[:1] for name, tensor in tensors.items()},
        {name: tensor.reshape(1, *tensor.shape) for name, tensor in tensors.items()},
    ):
        save_file(damage, path)
        reseal(path.parent)
        yield


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("safetensors")])
def test_tensors_of_something_else_are_refused(copied: Path, name: str) -> None:
    for _ in of_something_else(copied / name):
        with pytest.raises(RunError):
            sm.load(copied)


def test_a_network_that_describes_photographs_may_be_damaged_as_well(tmp_path: Path, weights: Path) -> None:
    model, _ = of_photographs(tmp_path / "photos", weights=weights, side=64)
    sm.save(model, tmp_path / "run")
    path = tmp_path / "run" / "backbone.safetensors"
    for _ in of_something_else(path):
        with pytest.raises(RunError, match=r"backbone\.safetensors does not fit its network"):
            sm.load(tmp_path / "run")
    for content in (*NO_CONTENT, pickle.dumps(Bomb(tmp_path / "exploded"))):
        path.write_bytes(content)
        reseal(path.parent)
        with pytest.raises(RunError, match=r"backbone\.safetensors cannot be read"):
            sm.load(tmp_path / "run")
    assert not (tmp_path / "exploded").exists()
    path.unlink()
    reseal(path.parent)
    assert "holds no backbone.safetensors" in semimetric("suggest", tmp_path / "run").sentence()


@pytest.mark.parametrize("name", ["model.json", "examples.json"])
def test_fields_of_something_else_are_refused(copied: Path, name: str) -> None:
    content = json.loads((copied / name).read_text())
    for field in content:
        for value in (None, {}, 7.5, "other"):
            (copied / name).write_text(json.dumps(content | {field: value}))
            reseal(copied)
            if not (isinstance(value, str) and field in ("source", "label_column", "id_column", "module")):
                with pytest.raises(RunError):
                    sm.load(copied)
        (copied / name).write_text(json.dumps({key: content[key] for key in content if key != field}))
        reseal(copied)
        with pytest.raises(RunError):
            sm.load(copied)


def test_examples_of_a_model_that_was_trained_on_are_refused(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, copied / "model.safetensors")
    reseal(copied)
    with pytest.raises(RunError, match="training went on after an interruption"):
        sm.load(copied)


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_nothing_is_ever_unpickled(copied: Path, tmp_path: Path, form: str) -> None:
    mark = tmp_path / "exploded"
    kept = {path.name: path.read_bytes() for path in copied.iterdir()}
    for name, content in kept.items():
        if form == "pickle":
            (copied / name).write_bytes(pickle.dumps(Bomb(mark)))
        else:
            torch.save({"metric.factor": Bomb(mark)}, copied / name)
        if name in (*FILES, "manifest.json"):
            with pytest.raises(RunError):
                sm.load(copied)
        else:
            sm.load(copied)
        arguments = ["fit", tmp_path, "--out", copied, "--resume", "--encoder", "small-cnn", "--side", 16]
        assert semimetric(*arguments).code == 2
        (copied / name).write_bytes(content)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()


def test_another_version_is_told(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config["versions"] |= {"torch": "1.0", "semimetric": "0.0.1"}
    (copied / "config.json").write_text(json.dumps(config))
    reseal(copied)
    with pytest.warns(VersionWarning, match=r"semimetric 0\.0\.1 \(here .*\); torch 1\.0 \(here"):
        sm.load(copied)
    done = semimetric("suggest", copied)
    assert done.code == 0
    assert done.err.startswith("note: the run was written with semimetric 0.0.1 (here ")
    del config["versions"]["torch"]
    (copied / "config.json").write_text(json.dumps(config))
    reseal(copied)
    with pytest.warns(VersionWarning, match="torch unknown"):
        sm.load(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimator": "Oracle"}, "estimator 'Oracle' that this version"),
        ({"params": {"wings": 2}}, "wings"),
        ({"params": None}, "does not know"),
    ],
)
def test_a_config_of_the_future_is_refused(copied: Path, change: dict[str, Any], message: str) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | change))
    reseal(copied)
    with pytest.raises(RunError, match=message):
        sm.load(copied)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "has no config.json" in semimetric("suggest", tmp_path).sentence()
    assert "there is no folder" in semimetric("suggest", tmp_path / "nowhere").sentence()


def test_a_run_of_a_benchmark_is_loaded_and_searched(tmp_path: Path) -> None:
    quick = ["--method", "affinity-triplets", "--epochs", 1, "--k", 6, "--batch-size", 300]
    run = tmp_path / "digits"
    assert semimetric("fit", "--dataset", "digits", "--out", run, *quick).code == 0
    found = load_run(run)
    model = estimator_of(found)
    images, _ = load_digits(return_X_y=True)
    rows = [int(name.removeprefix("train ")) for name in found.fitted.examples.names]
    from semimetric.data import load_dataset

    inputs = load_dataset("digits").train.inputs[rows]
    np.testing.assert_array_equal(model.transform(inputs), model.embedding_)
    assert model.classes_.tolist() == [str(digit) for digit in range(10)]
    np.save(tmp_path / "some.npy", inputs[:5].flatten(1).numpy())
    hits = semimetric("search", run, tmp_path / "some.npy", "-k", 1, "--json").json()["hits"]
    assert [line[0]["name"] for line in hits.values()] == list(found.fitted.examples.names[:5])
    np.save(tmp_path / "wrong.npy", images[:5, :63])
    assert "64 features, and these have 63" in semimetric("search", run, tmp_path / "wrong.npy").sentence()
    pytest.importorskip("onnxruntime", reason="needs semimetric[onnx]")
    assert "--check" in semimetric("export", run, "--onnx").sentence()
    assert semimetric("export", run, "--onnx", "--check", tmp_path / "some.npy", "--json").json()["examples"] == 5


@pytest.mark.filterwarnings("ignore:lrml.*:semimetric.training.TrainingWarning")
def test_the_estimator_of_a_benchmark_with_validation_is_fitted_again(tmp_path: Path) -> None:
    words = ["--validation-share", 0.1, "--method", "lrml", "--epochs", 1, "--out", tmp_path / "run"]
    assert semimetric("fit", "--dataset", "digits", *words).code == 0
    model = sm.load(tmp_path / "run")
    assert model.plan_.training.selection == "validation"
    images, classes = load_digits(return_X_y=True)
    again = clone(model).fit(images[:200].reshape(-1, 8, 8), some_labels(classes[:200]))
    assert again.plan_.method_settings == model.plan_.method_settings


def test_a_run_that_lost_its_description_is_not_continued(copied: Path, tmp_path: Path) -> None:
    (copied / "model.json").unlink()
    photos = copied.parent / "photos"
    write_folder(photos, labelled=3, unlabelled=4)
    words = ["--encoder", "small-cnn", "--side", 16, "--epochs", 2, "--passes", 1, "--resume"]
    assert "other data" in semimetric("fit", photos, "--out", copied, *words).sentence()  # written again
    config = json.loads((copied / "config.json").read_text())
    with pytest.raises(RunError, match=r"model\.json is missing"):
        Run.resume(copied, config)


def test_examples_of_one_name_are_refused(tmp_path: Path) -> None:
    features, classes = load_wine(return_X_y=True)
    model = sm.LRML().fit(features, np.where(np.arange(178) % 4 == 0, classes, -1))
    with pytest.raises(InputError, match="'same'"):
        sm.save(model, tmp_path / "run", names=["same"] * 178)
    assert not (tmp_path / "run").exists()
