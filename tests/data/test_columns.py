"""Columns of tables: their types, what becomes of them, and the schema that new data is checked against."""

from __future__ import annotations

import csv
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.data import Collection, read_collection
from semimetric.data.columns import MOST_CATEGORIES, TEXT_WIDTH, ColumnChoice, RawColumn, TextColumn
from semimetric.data.readers.tables import read_new_table
from semimetric.data.schema import Schema, fit_columns

ROWS = 60
WORDS = ["small", "smooth", "round", "lump", "dark", "large", "irregular", "mass", "soft", "stable", "quick", "slow"]


def write(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def mixed(seed: int = 0, rows: int = ROWS) -> dict[str, Any]:
    """A column of each kind, with gaps, an identifier and labels."""
    random = np.random.default_rng(seed)
    return {
        "age": [f"{value:.2f}" if random.random() > 0.1 else "n/a" for value in random.normal(40, 9, rows)],
        "weight": random.normal(70, 5, rows).round(3).tolist(),
        "colour": random.choice(["red", "blue", "green", ""], rows).tolist(),
        "comment": [" ".join(random.choice(WORDS, 5)) for _ in range(rows)],
        "customer_no": (10_000 + random.permutation(rows) * 7).tolist(),
        "target": random.choice(["a", "b", ""], rows).tolist(),
    }


def schema_of(collection: Collection) -> Schema:
    assert collection.schema is not None
    return collection.schema


def features_of(collection: Collection) -> np.ndarray:
    assert collection.features is not None
    return collection.features.numpy()


def kinds(collection: Collection) -> dict[str, str]:
    return {column.name: column.kind for column in schema_of(collection).columns}


def read(tmp_path: Path, table: dict[str, Any], **choice: Any) -> Collection:
    return read_collection(write(tmp_path / "table.csv", table), choice=ColumnChoice(**choice))


def test_types_are_detected_and_told(tmp_path: Path) -> None:
    found = read(tmp_path, mixed())
    assert kinds(found) == {"age": "numeric", "weight": "numeric", "colour": "categorical", "comment": "text"}
    assert len(found) == ROWS
    told = found.summary()
    assert "labels are those of column 'target', by its name" in told
    assert "2 numeric, 1 categorical ('colour'), 1 text ('comment')" in told
    assert "gaps in 'age', 'colour' are filled and marked; no row is lost" in told
    assert "identifier: 'customer_no'. Keep it with --types customer_no=TYPE" in told
    assert found.as_dict()["notes"] == list(found.notes)


def test_features_have_one_scale(tmp_path: Path) -> None:
    columns = mixed()
    features = features_of(read(tmp_path, columns))
    numbers = np.array([np.nan if text == "n/a" else float(text) for text in columns["age"]])
    gaps = np.isnan(numbers)
    scaled = (np.where(gaps, np.nanmedian(numbers), numbers) - np.nanmean(numbers)) / np.nanstd(numbers)
    np.testing.assert_allclose(features[:, 0], scaled, rtol=1e-5)
    assert features[:, 1].tolist() == gaps.astype(float).tolist()
    np.testing.assert_allclose(features[:, 2].std(), 1, rtol=1e-5)
    names = schema_of(read(tmp_path, columns)).features
    assert names[:3] == ("age", "age missing", "weight")
    assert {*names[3:7]} == {"colour: red", "colour: blue", "colour: green", "colour missing"}
    assert names[7:9] == ("comment 1", "comment 2")
    hot, missing = features[:, 3:6], features[:, 6]
    assert (hot.sum(1) + missing == 1).all()
    np.testing.assert_allclose(features[:, 7:].std(0).max(), 1, rtol=1e-5)


def test_numbers_without_gaps_stay_as_they_are(tmp_path: Path) -> None:
    found = read(tmp_path, {"a": [1, 2, 3], "b": [0.5, 1e8, -3], "y": ["u", "v", ""]})
    assert not schema_of(found).encodes
    assert features_of(found).tolist() == [[1, 0.5], [2, 1e8], [3, -3]]


def test_what_the_user_says_of_columns(tmp_path: Path) -> None:
    columns = mixed()
    assert set(kinds(read(tmp_path, columns, drop=("comment", "age")))) == {"weight", "colour"}
    assert set(kinds(read(tmp_path, columns, columns=("weight", "customer_no")))) == {"weight", "customer_no"}
    declared = read(tmp_path, columns, types={"customer_no": "numeric", "weight": "categorical", "colour": "text"})
    assert kinds(declared) == {
        "age": "numeric",
        "weight": "categorical",
        "colour": "text",
        "comment": "text",
        "customer_no": "numeric",
    }
    for choice in ({"drop": ("kolor",)}, {"columns": ("kolor",)}, {"types": {"kolor": "text"}}):
        with pytest.raises(InputError, match=r"names 'kolor', which is not among the columns of features .*'colour'"):
            read(tmp_path, columns, **choice)
    with pytest.raises(InputError, match="type of column 'age'"):
        ColumnChoice(types={"age": "number"})  # type: ignore[dict-item]
    np.save(tmp_path / "table.npy", np.eye(3))
    with pytest.raises(InputError, match="columns with names"):
        read_collection(tmp_path / "table.npy", choice=ColumnChoice(drop=("0",)))
    with pytest.raises(InputError, match="for tables"):
        read_collection(tmp_path, choice=ColumnChoice(drop=("0",)))


@pytest.mark.parametrize(
    ("name", "values", "is_identifier"),
    [
        ("customer_no", range(100, 800, 7), True),
        ("PassengerId", range(5, 505, 5), True),
        ("code", [f"x{number}" for number in range(100)], True),
        ("line", range(7, 107), True),
        ("dose", range(5, 505, 5), False),
        ("dose_no", [number / 2 for number in range(100)], False),
        ("customer_no", [*range(99), 5], False),
        ("city", [f"x{number % 90}" for number in range(100)], False),
    ],
)
def test_identifiers_are_left_out(tmp_path: Path, name: str, values: Any, is_identifier: bool) -> None:
    values = list(values)
    found = read(tmp_path, {"a": np.random.default_rng(0).normal(size=len(values)).tolist(), name: values})
    assert (name in schema_of(found).left_out) == is_identifier


def test_a_table_of_many_categories_stays_narrow(tmp_path: Path) -> None:
    many = [f"city {number % 900}" for number in range(1000)] + ["capital"] * 100
    schema = schema_of(found := read(tmp_path, {"a": [0.5] * 1100, "city": many}))
    assert schema.width == 1 + 2  # the number, the capital, and all others
    assert features_of(found)[0].tolist()[1:] == [0, 1]
    often = [f"city {number % 50}" for number in range(1000)]
    assert schema_of(read(tmp_path, {"a": [0.5] * 1000, "city": often})).width == 1 + MOST_CATEGORIES + 1


def test_new_categories_and_words_are_no_error(tmp_path: Path) -> None:
    schema = schema_of(read(tmp_path, {"size": ["S", "M", "M", "L"], "a": [1, 2, 3, 4]}))
    new = read_new_table(write(tmp_path / "new.csv", {"size": ["XL", "M", ""], "a": [1, 2, 3]}), schema)
    assert features_of(new)[:, :3].tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert new.notes == ("gaps in columns that had none in training are filled: 'size'.",)
    columns = mixed()
    schema = schema_of(read(tmp_path, columns))
    columns["comment"] = ["quite unheard-of things"] * ROWS
    text = features_of(read_new_table(write(tmp_path / "new.csv", columns), schema))[:, 7:]
    assert not text.any()


def test_numbers_as_categories_are_the_same_with_and_without_a_point(tmp_path: Path) -> None:
    schema = schema_of(read(tmp_path, {"floor": [1, 2, 1, 2], "a": [1, 2, 3, 4]}, types={"floor": "categorical"}))
    new = read_new_table(write(tmp_path / "new.csv", {"floor": ["1.0", "2.0"], "a": [1, 2]}), schema)
    assert features_of(new)[:, :2].tolist() == [[1, 0], [0, 1]]


def test_new_data_is_checked(tmp_path: Path) -> None:
    columns = mixed()
    schema = schema_of(read(tmp_path, columns))
    with pytest.raises(InputError, match="lacks the columns 'age', 'colour', which the run was trained on"):
        read_new_table(write(tmp_path / "new.csv", {k: columns[k] for k in ("weight", "comment")}), schema)
    more = columns | {"extra": [1] * ROWS}
    notes = read_new_table(write(tmp_path / "new.csv", more), schema).notes
    assert len(notes) == 1
    assert notes[0].endswith("that are not used: 'extra'.")
    changes = {
        "weight": (["heavy"] * ROWS, r"'weight' .* holds text \('heavy'\), and held numbers in training"),
        "colour": ([7] * ROWS, "'colour' .* holds numbers, and held categories in training"),
        "comment": ([7] * ROWS, "'comment' .* holds numbers, and held text in training"),
    }
    for name, (values, message) in changes.items():
        with pytest.raises(InputError, match=message):
            read_new_table(write(tmp_path / "new.csv", columns | {name: values}), schema)
    np.save(tmp_path / "new.npy", np.eye(5))
    with pytest.raises(InputError, match=r"trained on a table with names.*Give a .csv"):
        read_new_table(tmp_path / "new.npy", schema)


def test_labels_of_new_data(tmp_path: Path) -> None:
    columns = mixed()
    found = read(tmp_path, columns)
    assert read_new_table(tmp_path / "table.csv", schema_of(found)).labels == found.labels
    write(tmp_path / "new.csv", {"truth" if name == "target" else name: v for name, v in columns.items()})
    assert set(read_new_table(tmp_path / "new.csv", schema_of(found)).labels) == {None}
    assert read_new_table(tmp_path / "new.csv", schema_of(found), "truth").labels == found.labels


def test_arrays_go_by_place(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20, 3))
    values[3, 1] = np.nan
    values[:, 2] = np.nan
    np.save(tmp_path / "table.npy", values)
    found = read_collection(tmp_path / "table.npy")
    schema = schema_of(found)
    assert features_of(found).shape == (20, 3)  # two numbers and the gap in the second; the third is empty
    new = read_new_table(write(tmp_path / "new.csv", {"u": values[:, 0], "v": values[:, 1], "w": [""] * 20}), schema)
    np.testing.assert_allclose(features_of(new), features_of(found), rtol=1e-5)
    np.save(tmp_path / "new.npy", values[:, :2])
    with pytest.raises(InputError, match="trained on 3 features, and these have 2"):
        read_new_table(tmp_path / "new.npy", schema)
    full = Schema.of_numbers(map(str, range(3)), named=False)
    values[:, 2] = 1
    np.save(tmp_path / "new.npy", values)
    assert read_new_table(tmp_path / "new.npy", full).skipped == {
        "row 3": "its value in column 1 is missing or not a finite number"
    }


def test_short_columns_of_text(tmp_path: Path) -> None:
    few = read(tmp_path, {"a": [1, 2], "said": ["yes and no", "no"]}, types={"said": "text"})
    column = schema_of(few).columns[1]
    assert isinstance(column, TextColumn)
    assert column.terms == ("and", "no", "yes")
    long = read(tmp_path, {"said": [f"word{number} word{number + 1} also" for number in range(100)]})
    assert schema_of(long).width == TEXT_WIDTH
    with pytest.raises(InputError, match="no value: 'said'"):
        read(tmp_path, {"said": [". ! ?", "?"]}, types={"said": "text"})


CELLS = st.one_of(
    st.floats(width=32, allow_nan=False).map(str),
    st.sampled_from(["", "NaN", "n/a", "red", "blue", "a few words here", "7", "1.0", "inf"]),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r\n,"), max_size=8),
)


@draws(100)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=40),
    types=st.dictionaries(st.sampled_from("abc"), st.sampled_from(["numeric", "categorical", "text"])),
)
def test_rows_are_kept_and_files_change_nothing(rows: list[tuple[str, str, str]], types: dict[str, Any]) -> None:
    cells = zip(*rows, strict=True)
    raw = {name: RawColumn(partial(list, values)) for name, values in zip("abc", cells, strict=True)}
    schema, _ = fit_columns(raw, ColumnChoice(types=types), "a table")
    features, known = schema.encode(raw, len(rows))
    assert features.shape == (len(rows), schema.width)
    assert np.isfinite(features).all()
    assert known.shape == (len(rows),)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        np.savez(path, **schema.arrays())
        with np.load(path) as arrays:
            restored = Schema.restore(json.loads(json.dumps(schema.as_dict())), dict(arrays))
    np.testing.assert_array_equal(restored.encode(raw, len(rows))[0], features)
    assert restored.as_dict() == schema.as_dict()
