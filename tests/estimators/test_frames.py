"""Estimators on DataFrames of mixed columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semimetric as sm
from semimetric.core.errors import InputError, RunError
from semimetric.data.frames import ColumnWarning

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning")


def mixed(rows: int = 80, seed: int = 0) -> tuple[Any, list[str]]:
    """A DataFrame with a column of each kind and gaps, and labels of every fourth row."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, 2, rows)
    frame = pandas.DataFrame(
        {
            "size": np.where(random.random(rows) < 0.1, np.nan, classes * 3 + random.normal(size=rows)),
            "count": pandas.array(random.integers(0, 9, rows), dtype="Int64"),
            "colour": pandas.Categorical(np.where(random.random(rows) < 0.9, classes, 1 - classes).astype(str)),
            "flag": random.random(rows) < 0.5,
        }
    )
    frame.loc[3, "count"] = pandas.NA
    frame.loc[4, "colour"] = None
    return frame, [str(name) if row % 4 == 0 else "" for row, name in enumerate(classes)]


@pytest.fixture(scope="module")
def fitted() -> tuple[sm.SemiMetric, Any]:
    frame, labels = mixed()
    return sm.SemiMetric(epochs=2, random_state=0).fit(frame, labels), frame


def test_a_frame_keeps_its_rows_and_its_names(fitted: tuple[sm.SemiMetric, Any]) -> None:
    model, frame = fitted
    schema = model.fitted_.schema
    assert schema is not None
    assert [column.kind for column in schema.columns] == ["numeric", "numeric", "categorical", "numeric"]
    assert (model.n_features_in_, model.feature_names_in_.tolist()) == (4, list(frame.columns))
    assert model.plan_.network.preprocess == "none"
    np.testing.assert_allclose(model.transform(frame), model.embedding_, atol=1e-6)
    turned = frame[frame.columns[::-1]].assign(more=1)
    np.testing.assert_array_equal(model.transform(turned), model.transform(frame))
    assert model.predict(frame.head(3)).shape == (3,)


def test_a_frame_through_a_run(fitted: tuple[sm.SemiMetric, Any], tmp_path: Path) -> None:
    model, frame = fitted
    sm.save(model, tmp_path / "run")
    loaded = sm.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.transform(frame), model.transform(frame))
    assert loaded.n_features_in_ == 4


def test_a_damaged_schema_is_told(fitted: tuple[sm.SemiMetric, Any], tmp_path: Path) -> None:
    sm.save(fitted[0], tmp_path / "run")
    path = tmp_path / "run" / "schema.json"
    whole = json.loads(path.read_text())
    first = whole["columns"][0]
    damaged: list[Any] = [[], {}, whole | {"columns": [{}]}, whole | {"columns": whole["columns"][1:]}]
    damaged += [whole | {"columns": [first | change, *whole["columns"][1:]]} for change in ({"fill": "x"}, {"type": 7})]
    for content in damaged:
        path.write_text(json.dumps(content))
        with pytest.raises(RunError, match="is damaged"):
            sm.load(tmp_path / "run")


def test_other_data_is_refused(fitted: tuple[sm.SemiMetric, Any]) -> None:
    model, frame = fitted
    with pytest.raises(InputError, match="X lacks the columns 'size', which the model was fitted on"):
        model.transform(frame.drop(columns="size"))
    with pytest.raises(InputError, match=r"column 'size' of X holds text \('big'\)"):
        model.transform(frame.assign(size="big"))
    with pytest.raises(InputError, match="X must be a DataFrame with the columns 'size', 'count'"):
        model.transform(np.zeros((2, 4)))


def test_a_frame_of_numbers_is_a_matrix(fitted: tuple[sm.SemiMetric, Any]) -> None:
    frame, labels = mixed()
    numbers = frame[["flag"]].assign(a=np.arange(80) ** 0.5)
    model = sm.LRML().fit(numbers, labels)
    assert model.fitted_.schema is None
    np.testing.assert_array_equal(model.embedding_, sm.LRML().fit(numbers.to_numpy(float), labels).embedding_)


def test_identifiers_are_left_out_with_a_warning() -> None:
    frame, labels = mixed()
    with pytest.warns(ColumnWarning, match="all their values differ: 'customer_no'. Encode"):
        model = sm.LRML().fit(frame.assign(customer_no=np.arange(80) * 7), labels)
    assert model.fitted_.schema.names == tuple(frame.columns)
    with pytest.raises(InputError, match="columns with different names"):
        sm.LRML().fit(pandas.concat([frame, frame], axis=1), labels)
