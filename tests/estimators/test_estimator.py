from __future__ import annotations

import copy
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.own_photos import write_photo
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from semimetric.core.errors import DataError, InputError
from semimetric.data.labels import LabelWarning, number_labels
from semimetric.estimators.base import MetricEstimator
from semimetric.estimators.linear import APIT, APLLR, ISDML, LRML, SERAPH
from semimetric.estimators.semimetric import SemiMetric
from semimetric.methods import METHODS

pytestmark = pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning")

LINEAR = (LRML, SERAPH, ISDML, APLLR, APIT)


@pytest.fixture(scope="module")
def wine() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, classes, and labels of which most are unknown."""
    features, classes = load_wine(return_X_y=True)
    labels = np.full(len(classes), -1)
    for name in range(3):
        rows = np.flatnonzero(classes == name)[:8]
        labels[rows] = name
    return features, classes, labels


def quick(**changes: Any) -> SemiMetric:
    return SemiMetric(**{"random_state": 0, "epochs": 5} | changes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [SemiMetric, *LINEAR], ids=lambda kind: kind.__name__)
def test_is_an_estimator_of_scikit_learn(kind: type[MetricEstimator]) -> None:
    changes = {"epochs": 15} if kind is SemiMetric else {}
    check_estimator(kind(random_state=0, **changes))


@pytest.mark.parametrize("kind", LINEAR, ids=lambda kind: kind.__name__)
def test_linear_estimators_have_the_settings_of_their_methods(kind: type[MetricEstimator]) -> None:
    settings = METHODS[kind.method].Settings  # type: ignore[attr-defined]
    wanted = {field.name: field.default for field in dataclasses.fields(settings) if field.name != "components"}
    given = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    assert given == wanted | {"n_components": None, "random_state": None}


@pytest.mark.filterwarnings("ignore:.*held out")
def test_learns_wine_from_few_labels(wine: tuple[np.ndarray, ...]) -> None:
    features, classes, labels = wine
    model = SemiMetric(random_state=0).fit(features, labels)
    assert model.score(features, classes) > 0.92
    assert model.transform(features).shape == (178, 64)
    np.testing.assert_allclose(model.predict_proba(features).sum(1), 1.0)
    np.testing.assert_array_equal(model.embedding_, model.transform(features))
    known = labels >= 0
    assert (model.label_distributions_[known].argmax(1) == labels[known]).all()
    assert (model.confidence_[known] == 1).all()
    assert (model.confidence_[~known] < 1).all()


@pytest.mark.parametrize("kind", LINEAR, ids=lambda kind: kind.__name__)
def test_linear_estimators_in_a_pipeline(kind: type[MetricEstimator], wine: tuple[np.ndarray, ...]) -> None:
    features, classes, labels = wine
    pipeline = make_pipeline(StandardScaler(), kind(n_components=4, random_state=0)).fit(features, labels)
    assert pipeline.score(features, classes) > 0.88
    assert pipeline.transform(features).shape == (178, 4)
    assert next(iter(pipeline.get_feature_names_out())) == f"{kind.__name__.lower()}0"


@pytest.mark.filterwarnings("ignore")
def test_grid_search_over_methods_clones_and_runs_in_parallel(wine: tuple[np.ndarray, ...]) -> None:
    features, _, labels = wine
    grid = {"method": ["consensus", "lrml", "triplet", "instance"]}
    search = GridSearchCV(quick(), grid, cv=2, n_jobs=2, error_score="raise").fit(features, labels)
    assert search.best_score_ > 0.7
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


def test_score_counts_labelled_examples_alone(wine: tuple[np.ndarray, ...]) -> None:
    features, classes, labels = wine
    model = LRML().fit(StandardScaler().fit_transform(features), labels)
    scaled = StandardScaler().fit_transform(features)
    known = labels >= 0
    assert model.score(scaled, labels) == model.score(scaled[known], classes[known])
    with pytest.raises(InputError, match="no label"):
        model.score(scaled, np.full(len(labels), -1))


@pytest.mark.parametrize("nothing", [None, "", -1, "-1"])
def test_labels_may_be_texts(nothing: Any, wine: tuple[np.ndarray, ...]) -> None:
    features, _, labels = wine
    names = np.array(["c", "d", "ä b"], dtype=object)[labels]
    names[labels < 0] = nothing
    model = LRML().fit(features, names)
    assert list(model.classes_) == ["c", "d", "ä b"]
    np.testing.assert_array_equal(model.fitted_.labels.numpy(), labels)
    assert set(model.predict(features)) <= {"ä b", "c", "d"}


def test_minus_one_and_one_alone_are_two_classes() -> None:
    with pytest.warns(LabelWarning, match="two classes"):
        classes, numbers = number_labels([-1, 1, 1, -1])
    assert classes.tolist() == [-1, 1]
    assert numbers.tolist() == [0, 1, 1, 0]


@pytest.mark.filterwarnings("ignore:.*held out", "ignore:.*no GPU")
@pytest.mark.parametrize("form", ["N, H, W", "N, C, H, W", "N, H, W, C", "bytes", "tensor"])
def test_images_in_any_order_of_axes(form: str) -> None:
    images, classes = load_digits(return_X_y=True)
    images = images[:300].reshape(300, 8, 8)
    forms: dict[str, Any] = {
        "N, H, W": images,
        "N, C, H, W": images[:, None],
        "N, H, W, C": images[..., None],
        "bytes": images.astype(np.uint8),
        "tensor": torch.from_numpy(images),
    }
    labels = np.where(np.arange(300) < 60, classes[:300], -1)
    model = quick(epochs=2).fit(forms[form], labels)
    assert model.fitted_.spec.encoder == "small-cnn"
    assert model.fitted_.spec.shape == (1, 8, 8)
    assert model.transform(forms[form][:5]).shape == (5, 64)
    with pytest.raises(InputError, match="images of shape"):
        model.transform(images[:5, :7])


@pytest.mark.filterwarnings("ignore:.*held out")
def test_photographs_by_their_paths(tmp_path: Path) -> None:
    paths = []
    for number in range(40):
        path = tmp_path / f"ä photo {number}.png"
        write_photo(path, colour=(250, 10, 10) if number % 2 else (10, 10, 250), seed=number)
        paths.append(path)
    labels = [number % 2 if number < 12 else -1 for number in range(40)]
    model = quick(epochs=3, side=32).fit(paths, labels)
    assert model.score([str(path) for path in paths], [number % 2 for number in range(40)]) == 1.0
    rows = model.kneighbors(paths[:3], n_neighbors=1, return_distance=False)
    assert rows.flatten().tolist() == [0, 1, 2]
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.png"):
        model.transform([tmp_path / "broken.png"])
    with pytest.raises(InputError, match="Put it in a list"):
        model.transform(tmp_path / "broken.png")


@pytest.mark.filterwarnings("ignore:.*held out")
def test_a_module_of_ones_own_stays_as_it_is(wine: tuple[np.ndarray, ...]) -> None:
    features, _, labels = wine
    module = nn.Sequential(nn.Linear(13, 20), nn.ReLU(), nn.Linear(20, 7))
    before = copy.deepcopy(module.state_dict())
    model = quick(encoder=module).fit(features, labels)
    assert model.transform(features).shape == (178, 7)
    assert all(torch.equal(before[name], module.state_dict()[name]) for name in before)


def test_neighbours_are_those_of_brute_force(wine: tuple[np.ndarray, ...]) -> None:
    features, _, labels = wine
    model = LRML().fit(features, labels)
    points = model.transform(features)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    found, rows = model.kneighbors(n_neighbors=4)
    np.testing.assert_allclose(found, np.sort(distances, axis=1)[:, :4], atol=1e-9)
    np.testing.assert_allclose(np.take_along_axis(distances, rows, axis=1), found, atol=1e-9)


def test_neighbours_among_duplicates() -> None:
    features = np.repeat(np.random.default_rng(0).normal(size=(6, 3)), 5, axis=0)
    model = LRML(k=3).fit(features, np.repeat([0, 1, -1, 0, 1, -1], 5))
    distances, rows = model.kneighbors(n_neighbors=2)
    assert (distances == 0).all()
    assert (rows != np.arange(30)[:, None]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "lmnn"}, "method must be one of"),
        ({"encoder": 3}, "encoder must be a name"),
        ({"encoder": "resnet"}, "encoder must be one of"),
        ({"settings": {"k": 0}}, "k must be at least 1"),
        ({"settings": {"unheard": 1}}, "no setting 'unheard'"),
        ({"n_components": 0}, "n_components must be"),
        ({"n_components": 1000}, "components must be at most"),
        ({"weights": "file.npz"}, "not for vectors"),
        ({"preprocess": "whitened"}, "preprocess must be one of"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str, wine: tuple[np.ndarray, ...]) -> None:
    features, _, labels = wine
    with pytest.raises(InputError, match=message):
        quick(**changes).fit(features, labels)


def test_labels_are_asked_for_where_the_method_needs_them(wine: tuple[np.ndarray, ...]) -> None:
    features, _, labels = wine
    with pytest.raises(InputError, match="requires y to be passed"):
        quick().fit(features)
    with pytest.raises(InputError, match="needs labels"):
        quick().fit(features, np.full(len(labels), -1))
    model = quick(method="instance").fit(features)
    assert len(model.classes_) == 0
    assert model.transform(features).shape == (178, 64)
    with pytest.raises(InputError, match="fitted without labels"):
        model.predict(features)
    with pytest.raises(NotFittedError):
        SemiMetric().transform(features)
