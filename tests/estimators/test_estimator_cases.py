"""What once went wrong, or nearly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.encoders.photographs import PhotoTransform
from semimetric.estimators.linear import LRML
from semimetric.estimators.runs import load, save
from semimetric.estimators.semimetric import SemiMetric
from semimetric.model.folder import load_run
from semimetric.serve.embed import new_examples
from semimetric.training import Trainer

pytestmark = pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning", "ignore:.*held out")


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    features, classes = load_iris(return_X_y=True)
    return features, classes


def test_score_does_not_cut_texts_or_numbers(iris: tuple[np.ndarray, np.ndarray]) -> None:
    features, classes = iris
    named = LRML().fit(features, np.array(["cat", "dog", "elk"])[classes])
    assert named.score(features[:50], ["catfish"] * 50) == 0.0
    numbered = LRML().fit(features, classes)
    with pytest.raises(ValueError, match="continuous"):
        numbered.score(features[:50], np.full(50, 0.7))
    with pytest.raises(ValueError, match="inconsistent"):
        numbered.score(features, classes[:10])


def test_a_copy_is_named_as_its_example_however_small_the_class() -> None:
    random = np.random.default_rng(0)
    many, few = random.normal(size=(20, 4)), random.normal(size=(2, 4)) * 0.01 + 50
    model = LRML().fit(np.vstack([many, few]), [0] * 20 + [1] * 2)
    assert model.predict(few).tolist() == [1, 1]
    assert (model.predict_proba(few)[:, 1] > 0.9).all()


def test_naming_many_is_naming_some(iris: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    features, classes = iris
    model = LRML().fit(features, classes)
    whole = model.predict_proba(features)
    monkeypatch.setattr("semimetric.model.fitted.LARGEST_ARRAY", 200)
    np.testing.assert_array_equal(model.predict_proba(features), whole)


@pytest.mark.parametrize("nothing", [float("nan"), None, -1.0, "-1.0", ""])
def test_a_list_of_texts_may_miss_some(nothing: object, iris: tuple[np.ndarray, np.ndarray]) -> None:
    model = LRML(k=3).fit(iris[0][:60], ["a", nothing, "b"] * 20)
    assert model.classes_.tolist() == ["a", "b"]
    assert int((model.fitted_.labels < 0).sum()) == 20


def test_names_of_columns_outlive_a_run(iris: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    features, classes = iris
    model = LRML().fit(features, classes)
    model.feature_names_in_ = np.array(list("abcd"), dtype=object)  # as fit on a table leaves them
    save(model, tmp_path / "run")
    assert load(tmp_path / "run").feature_names_in_.tolist() == list("abcd")
    header, rows = "id,d,y,c,comment,b,a", [f"r{i},{f[3]},5,{f[2]},so so,{f[1]},{f[0]}" for i, f in enumerate(features)]
    (tmp_path / "new.csv").write_text("\n".join([header, *rows]))
    found = new_examples(load_run(tmp_path / "run"), tmp_path / "new.csv")
    assert found.names[:2] == ("r0", "r1")
    torch.testing.assert_close(found.features, torch.tensor(features).float())


def test_a_feature_called_y_is_no_label_in_new_tables(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [f"{x:.3f},{y:.3f},{'ab'[int(x > 0)]}" for x, y in random.normal(size=(40, 2))]
    (tmp_path / "points.csv").write_text("\n".join(["x,y,kind", *rows]))
    collection = sm.read_collection(tmp_path / "points.csv", label_column="kind")
    assert collection.columns == ("x", "y")
    model = LRML().fit(collection.features.numpy(), list(collection.labels))
    model.feature_names_in_ = np.array(collection.columns, dtype=object)
    save(model, tmp_path / "run")
    (tmp_path / "new.csv").write_text("x,y\n1,2\n3,4\n")
    found = new_examples(load_run(tmp_path / "run"), tmp_path / "new.csv")
    assert found.features.tolist() == [[1, 2], [3, 4]]
    (tmp_path / "less.csv").write_text("x\n1\n3\n")
    with pytest.raises(InputError, match="lacks the column 'y'"):
        new_examples(load_run(tmp_path / "run"), tmp_path / "less.csv")


def test_large_offsets_keep_their_digits(iris: tuple[np.ndarray, np.ndarray]) -> None:
    features, classes = iris
    assert LRML().fit(features + 1e8, classes).score(features + 1e8, classes) > 0.95
    assert SemiMetric("lrml").fit(features + 1e8, classes).score(features + 1e8, classes) > 0.95


def test_transparency_is_not_taken_for_width() -> None:
    with pytest.raises(InputError, match="transparency"):
        SemiMetric().fit(np.zeros((6, 32, 32, 4), dtype=np.uint8), [0, 1, -1, -1, 0, 1])


def test_a_pretrained_network_refuses_images_from_0_to_1() -> None:
    transform = PhotoTransform(8, network=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4)))
    assert transform.inputs(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.device("cpu")).shape == (2, 4)
    with pytest.raises(InputError, match="range 0 to 255"):
        transform.inputs(torch.rand(2, 3, 8, 8), torch.device("cpu"))


def test_an_interrupt_is_not_a_fitted_model(
    iris: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trainer: Trainer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_train_epoch", interrupted)
    features, classes = iris
    model = SemiMetric()
    with pytest.raises(KeyboardInterrupt):
        model.fit(features, np.where(np.arange(150) % 3, -1, classes))
    assert not hasattr(model, "fitted_")


def test_another_fit_forgets_the_names_of_columns() -> None:
    model = SemiMetric(epochs=1, random_state=0)
    model.feature_names_in_ = np.array(list("abcd"), dtype=object)
    model.fit(np.random.default_rng(0).random((20, 8, 8)), [0, 1] * 10)
    assert not hasattr(model, "feature_names_in_")


def test_a_class_of_ones_own_is_not_saved(iris: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    class Mine(LRML):
        pass

    model = Mine().fit(*iris)
    with pytest.raises(InputError, match="class of your own"):
        save(model, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_parameters_of_the_estimator_are_no_settings(iris: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(InputError, match=r"settings holds 'encoder', a parameter of SemiMetric itself"):
        SemiMetric(settings={"encoder": "linear"}).fit(*iris)
    with pytest.raises(InputError, match="labels_per_class is for benchmark datasets"):
        SemiMetric(settings={"labels_per_class": 3}).fit(*iris)
    with pytest.raises(InputError, match="k must be a whole number, got 'a'"):
        LRML(k="a").fit(*iris)
