"""A user's own tables in files of every kind."""

import csv
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.data import Collection, read_collection
from semimetric.data.collection import tidy
from semimetric.data.columns import ColumnChoice


def table(tmp_path: Path, text: str, name: str = "table.csv", **columns: str) -> Collection:
    (tmp_path / name).write_bytes(text.encode())
    return read_collection(tmp_path / name, **columns)


def arrays(tmp_path: Path, **values: object) -> Path:
    np.savez(tmp_path / "table.npz", **values)
    return tmp_path / "table.npz"


def rows_of(collection: Collection) -> list[list[float]]:
    assert collection.features is not None
    assert collection.features.dtype == torch.float32
    return collection.features.tolist()


def test_features_labels_and_ids(tmp_path: Path) -> None:
    text = "id,length,label,width\nx,1,cat,2.5\ny,-3e1,,4\nz, 5 , dog ,6\n"
    collection = table(tmp_path, text)
    assert collection.names == ("x", "y", "z")
    assert collection.labels == ("cat", None, "dog")
    assert collection.columns == ("length", "width")
    assert rows_of(collection) == [[1, 2.5], [-30, 4], [5, 6]]
    assert (collection.paths, collection.skipped) == (None, {})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\ufeffa,b,y\r\n1,2,cat\r\n", "table.CSV"),
        ("a;b;y\n1;2;cat\n", "table.csv"),
        ("a\tb\ty\n1\t2\tcat\n", "table.tsv"),
        ("a,b,Label\n\n1,2,cat\n,,\n", "table.csv"),
        ("y,a,b,\ncat,1,2,\n", "table.csv"),
        ('"a";"b";"y"\n"1";"2";"cat"\n', "table.tsv"),
    ],
)
def test_ways_to_write_a_table(tmp_path: Path, text: str, name: str) -> None:
    collection = table(tmp_path, text, name)
    assert collection.columns == ("a", "b")
    assert (collection.labels, rows_of(collection)) == (("cat",), [[1, 2]])
    assert collection.skipped == {}


def test_semicolons_with_commas_in_the_header(tmp_path: Path) -> None:
    collection = table(tmp_path, "length, in mm, rounded;width, in mm;label\n1.5;2;cat\n")
    assert collection.columns == ("length, in mm, rounded", "width, in mm")
    collection = table(tmp_path, '"a;b;c;d",e,y\n1,2,cat\n')
    assert collection.columns == ("a;b;c;d", "e")


def test_without_labels_and_ids_rows_are_named_as_in_a_spreadsheet(tmp_path: Path) -> None:
    collection = table(tmp_path, "a,b\n1,2\n\n3,4\n")
    assert (collection.names, collection.labels) == (("row 2", "row 4"), (None, None))


def test_columns_by_name(tmp_path: Path) -> None:
    text = "code,a,species,label\nx,1,cat,5\ny,2,dog,6\n"
    collection = table(tmp_path, text, label_column="species", id_column="code")
    assert (collection.names, collection.labels, collection.columns) == (("x", "y"), ("cat", "dog"), ("a", "label"))
    with pytest.raises(
        InputError,
        match=r"id_column 'kode' is not in .*which has 'code', 'a', 'species', 'label'\. Did you mean 'code'\?",
    ):
        table(tmp_path, text, label_column="species", id_column="kode")
    assert table(tmp_path, "id,a\n5,1\n6,2\n", label_column="id").labels == ("5", "6")


def test_numeric_labels(tmp_path: Path) -> None:
    assert table(tmp_path, "a,y\n1,1.0\n2,\n3,-1.0\n4,10.0\n").labels == ("1", None, None, "10")
    assert table(tmp_path, "a,y\n1,1\n2,cat\n3,nan\n4,2.0\n").labels == ("1", "cat", None, "2.0")


def test_no_row_with_gaps_is_lost(tmp_path: Path) -> None:
    text = "a,b c,y\n1,2,cat\n,2,cat\n1,NaN,cat\n1,inf,cat\n1e300,2,cat\n1,n/a,cat\n3,4,dog\n5,6\n5,6,7,8\n,-,dog\n"
    collection = table(tmp_path, text)
    assert collection.names == tuple(f"row {number}" for number in range(2, 9))
    assert collection.features is not None
    assert torch.isfinite(collection.features).all()
    assert collection.features[:, 1].tolist() == [0, 1, 0, 0, 1, 0, 0]  # after each column where its gaps are
    assert collection.features[:, 3].tolist() == [0, 0, 1, 1, 0, 1, 0]
    assert collection.skipped == {
        "row 9": "its number of fields is 2, that of the header 3",
        "row 10": "its number of fields is 4, that of the header 3",
        "row 11": "it has no value in any column of features",
    }
    assert collection.order == tuple(f"row {number}" for number in range(2, 12))
    assert "7 gaps in 'a', 'b c' are filled and marked; no row is lost." in collection.summary()


def test_decimal_commas_are_recognised(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"column 'a' .* \(1,5\). Write them with a point"):
        table(tmp_path, "a;b;y\n1,5;-0,25;cat\n2,5;3,5;dog\n")


def test_headers_with_mistakes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"first row, but that has numbers: '1', '2.5'. Add a row"):
        table(tmp_path, "1,2.5\n3,4\n")
    with pytest.raises(InputError, match=r"no name for column 1.*to_csv\(index=False\)"):
        table(tmp_path, ",a,y\n0,1,cat\n")
    with pytest.raises(InputError, match="2 columns of the name 'a'"):
        table(tmp_path, "a,a,y\n0,1,cat\n")
    with pytest.raises(InputError, match="several columns that may hold the labels: 'label', 'y'"):
        table(tmp_path, "a,label,y\n0,1,cat\n")
    with pytest.raises(InputError, match="columns of features, but has only 'id', 'y'"):
        table(tmp_path, "id,y\n0,cat\n")
    with pytest.raises(InputError, match="first row, but that is empty"):
        table(tmp_path, "")


def test_messages_stay_short_whatever_the_header(tmp_path: Path) -> None:
    many = ",".join(f"column {number}" for number in range(2_000))
    found = table(tmp_path, f"{many}\n{many}\n{','.join('x' * 2_000)}\n")
    assert "'column 7' and 1992 more" in found.summary()
    assert len(found.summary()) < 600
    with pytest.raises(InputError, match=r"column 'xxx.*…' of") as caught:
        table(tmp_path, "x" * 10_000 + ';a\n"1,5";1\n')
    assert len(str(caught.value)) < 600
    with pytest.raises(InputError, match="line 1, cannot be read as a table"):
        table(tmp_path, "x" * 200_000 + "\n1\n")


def test_nothing_to_read(tmp_path: Path) -> None:
    for text in ("a,y\n", "a,y\n,cat\nNaN,dog\n", "a,y\ninf,cat\n"):
        with pytest.raises(InputError, match=r"features, but has only 'a', 'y'. Add some. left out, .*: 'a'"):
            table(tmp_path, text)
    with pytest.raises(InputError, match="none can be used"):
        read_collection(arrays(tmp_path, X=np.zeros((0, 3))))
    with pytest.raises(InputError, match="none can be used"):
        read_collection(arrays(tmp_path, X=np.zeros((3, 0))))


def test_ids_must_differ(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows 2 and 4 both have 'x'"):
        table(tmp_path, "id,a\nx,1\ny,2\nx,3\n")
    assert table(tmp_path, "id,a\nx,1\n,2\n7.0,3\n").names == ("x", "row 3", "7.0")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["table.csv", "table.npy"])
def test_permission(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"a,y")
    (tmp_path / name).chmod(0)
    with pytest.raises(InputError, match=f"{name} cannot be read: permission is denied"):
        read_collection(tmp_path / name)


def test_labels_are_for_folders(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,y\n1,cat\n")
    with pytest.raises(InputError, match="labels is for a folder of images"):
        read_collection(path, labels=path)


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12) | st.sampled_from(
    ['"', '""', ",", ";", "\t", "\r\n", "\n", "a,b;c", '"quoted", twice', "'", " x ", "NaN", "-1", "0", "caf\u00e9"]
)
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@draws(150)
@given(
    rows=st.lists(st.tuples(TEXTS, NUMBERS, NUMBERS), min_size=1, max_size=6),
    delimiter=st.sampled_from(",;\t"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
)
def test_whatever_a_csv_writer_writes_comes_back(
    rows: list[tuple[str, float, float]], delimiter: str, encoding: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", newline="", encoding=encoding) as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(["a", "what it is", "b"])
            writer.writerows([first, f"{label}!", second] for label, first, second in rows)
        collection = read_collection(path, label_column="what it is")
    assert collection.labels == tuple(tidy(f"{label}!") for label, _, _ in rows)
    assert rows_of(collection) == [[first, second] for _, first, second in rows]
    assert collection.columns == ("a", "b")
    assert collection.skipped == {}


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f8", "int64", "uint8", "bool"])
def test_npy(tmp_path: Path, dtype: str) -> None:
    values = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype)
    np.save(tmp_path / "table.npy", values)
    collection = read_collection(tmp_path / "table.npy")
    assert rows_of(collection) == values.astype(float).tolist()
    assert collection.names == ("row 0", "row 1", "row 2")
    assert collection.labels == (None, None, None)
    with pytest.raises(InputError, match="label_column 'y' is not in"):
        read_collection(tmp_path / "table.npy", label_column="y")


@pytest.mark.parametrize(
    ("features", "labels", "names"), [("X", "y", "names"), ("features", "labels", "ids"), ("anything", "Y", "names")]
)
def test_npz(tmp_path: Path, features: str, labels: str, names: str) -> None:
    values = {features: np.eye(3), labels: np.array([1.0, np.nan, 2.0]), names: np.array(["a", "b", "c"])}
    collection = read_collection(arrays(tmp_path, **values))
    assert (collection.names, collection.labels) == (("a", "b", "c"), ("1", None, "2"))
    assert rows_of(collection) == np.eye(3).tolist()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([0, -1, 7]), ("0", None, "7")),
        (np.array(["", "cat", " dog"]), (None, "cat", "dog")),
        (np.array([b"cat", b"", b"-1"]), ("cat", None, None)),
        (np.array([[1], [2], [-1]], dtype=np.int8), ("1", "2", None)),
        (np.array([1.1, 2, 3], dtype=np.float32), ("1.1", "2.0", "3.0")),
    ],
)
def test_labels_in_npz(tmp_path: Path, labels: np.ndarray, expected: tuple[str | None, ...]) -> None:
    assert read_collection(arrays(tmp_path, X=np.eye(3), y=labels)).labels == expected
    assert read_collection(arrays(tmp_path, X=np.eye(3), target=labels), label_column="target").labels == expected


def test_gaps_in_arrays(tmp_path: Path) -> None:
    values = np.eye(4)
    values[1, 2], values[3, 0], values[2] = np.nan, 1e200, np.nan
    collection = read_collection(arrays(tmp_path, X=values, y=[0, 1, 2, 3]))
    assert (collection.names, collection.labels) == (("row 0", "row 1", "row 3"), ("0", "1", "3"))
    assert collection.skipped == {"row 2": "it has no value in any column of features"}
    assert collection.features is not None
    assert collection.features.shape == (3, 8)
    assert collection.features[:, 5].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": np.eye(2), "b": np.eye(2)}, r"just one with two dimensions, but has a \(2, 2\), b \(2, 2\)"),
        ({"y": np.zeros(2)}, "but has none. Save the features as X"),
        ({"X": np.zeros((4, 2, 2))}, r"X of .* is float64 of shape \(4, 2, 2\). Flatten it"),
        ({"X": np.zeros(3)}, r"matrix of numbers .* shape \(3,\)"),
        ({"X": np.array([["a"]])}, "matrix of numbers"),
        ({"X": np.zeros((2, 2), complex)}, "matrix of numbers"),
        ({"X": np.eye(3), "y": np.zeros(2)}, r"y of .*one for each of 3 rows, but is float64 of shape \(2,\)"),
        ({"X": np.eye(3), "y": np.eye(3)}, "one for each of 3 rows"),
        ({"X": np.eye(3), "names": ["a", "b", "a"]}, "rows 0 and 2 both have 'a'"),
        ({"X": np.eye(3), "y": np.array(["a", None, 1], object)}, "array 'y' of .* Python objects, .* never unpickled"),
        ({"X": np.array([[1, None]], object)}, "array 'X' of .* Python objects"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_collection(arrays(tmp_path, **values))


def test_an_object_array_that_is_not_needed_does_no_harm(tmp_path: Path) -> None:
    path = arrays(tmp_path, X=np.eye(2), meta=np.array([None, {}], object))
    assert len(read_collection(path)) == 2


@pytest.mark.parametrize("name", ["table.npy", "table.npz", "table.parquet"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04K\x01.", b"PK\x03\x04", b"\x93NUMPY\x01\x00\x08\x00"])
def test_damaged_files(tmp_path: Path, name: str, content: bytes) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} cannot be read") as caught:
        read_collection(tmp_path / name)
    assert "allow_pickle" not in str(caught.value)


def test_a_truncated_npz(tmp_path: Path) -> None:
    path = arrays(tmp_path, X=np.random.default_rng(0).normal(size=(50, 4)))
    content = bytearray(path.read_bytes())
    content[300:400] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"array 'X' of .*table.npz cannot be read"):
        read_collection(path)


def parquet(tmp_path: Path, **columns: object) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    file = pytest.importorskip("pyarrow.parquet")
    file.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


def test_parquet(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        id=["a", "b", "c", "d"],
        length=[1, None, 3, 4],
        width=[0.5, 1.5, 2.5, float("nan")],
        ripe=[True, False, False, True],
        label=[1.0, 2.0, None, 3.0],
        __index_level_0__=[10, 11, 12, 13],
    )
    collection = read_collection(path)
    assert collection.columns == ("length", "width", "ripe")
    assert (collection.names, collection.labels) == (("a", "b", "c", "d"), ("1", "2", None, "3"))
    assert collection.features is not None
    assert collection.features.shape == (4, 5)
    assert collection.skipped == {}


def test_parquet_columns(tmp_path: Path) -> None:
    path = parquet(tmp_path, a=[1, 2], species=["cat", None], embedding=[[1.0], [2.0]])
    with pytest.raises(InputError, match=r"column 'embedding' of .* has list values.*Leave it out with --drop"):
        read_collection(path)
    assert read_collection(path, choice=ColumnChoice(drop=("embedding",))).columns == ("a", "species")
    path = parquet(tmp_path, a=[1, 2], species=["cat", None], code=["007", "008"])
    found = read_collection(path, label_column="species")
    assert found.labels == ("cat", None)
    assert found.schema is not None
    assert [column.kind for column in found.schema.columns] == ["numeric", "categorical"]


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'semimetric\[tables\]'"):
        read_collection(tmp_path / "table.parquet")


def test_an_archive_is_not_taken_for_an_array_by_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.ones((3, 2)))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"a\.npz"):
        read_collection(tmp_path / "a.npy")
