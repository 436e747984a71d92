"""Results of fits on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from semimetric.core.errors import RunError
from semimetric.paper.records import Records, rounded


def record(key: str, dataset: str = "digits", **values) -> dict:
    about = {"key": key, "dataset": dataset, "command": f"fit {key}", "code": "1+a", "seed": 0}
    return about | {"plan": {}, "history": [], "kept": {}, "value": 1.5} | values


def test_results_come_back_by_dataset_and_key(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "records"
    records = Records(folder)
    assert not folder.exists()
    for one in (record("b"), record("a"), record("a", "mnist")):
        records.add(one)
    again = Records(folder)
    assert again.find("digits", "a") == record("a")
    assert again.find("mnist", "a") == record("a", "mnist")
    assert again.find("mnist", "b") is again.find("cars196", "a") is None
    assert sorted((one["dataset"], one["key"]) for one in again.all()) == [
        ("digits", "a"),
        ("digits", "b"),
        ("mnist", "a"),
    ]


def test_a_result_replaces_the_one_of_its_key(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.add(record("a"))
    records.add(record("b"))
    records.add(record("a", value=2.5))
    for each in (records, Records(tmp_path)):
        assert [one["value"] for one in each.all()] == [2.5, 1.5]


def test_the_file_does_not_depend_on_the_order_of_the_results(tmp_path: Path) -> None:
    for name, keys in (("one", "abc"), ("two", "cab")):
        for key in keys:
            Records(tmp_path / name).add(record(key))
    assert (tmp_path / "one" / "digits.json").read_bytes() == (tmp_path / "two" / "digits.json").read_bytes()


def test_two_at_once_lose_nothing(tmp_path: Path) -> None:
    one, other = Records(tmp_path), Records(tmp_path)
    one.add(record("a"))
    other.add(record("b"))
    one.add(record("c"))
    assert sorted(found["key"] for found in Records(tmp_path).all()) == ["a", "b", "c"]


def test_a_write_that_fails_leaves_the_results_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(tmp_path)
    records.add(record("a"))

    def full(path: Path, text: str, *_: str) -> int:
        path.write_bytes(text.encode()[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            records.add(record("b"))
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["digits.json"]
    assert [one["key"] for one in Records(tmp_path).all()] == ["a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": 1, "rec', r"digits\.json cannot be read.*It is damaged"),
        ("[]", r"digits\.json holds no results of this format \(1\)\. Name another --out, or move the file away"),
        ('{"format": 2, "records": []}', "holds no results of this format"),
        ('{"format": 1}', r"digits\.json is damaged: it holds no list of results"),
        ('{"format": 1, "records": [{"dataset": "digits"}]}', "is damaged: it holds no list of results"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_left_alone(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "digits.json"
    path.write_text(content)
    with pytest.raises(RunError, match=message):
        Records(tmp_path)
    assert path.read_text() == content


def test_numbers_are_rounded_wherever_they_are() -> None:
    value = {"a": 0.123456789, "b": [123456.789, (1e-12, 7)], "c": {"d": True, "e": None, "f": "0.123456789"}}
    assert rounded(value) == {
        "a": 0.12346,
        "b": [123460.0, [1e-12, 7]],
        "c": {"d": True, "e": None, "f": "0.123456789"},
    }
    assert rounded(True) is True
    assert rounded(1234567) == 1234567
    assert json.dumps(rounded(value)) == json.dumps(rounded(rounded(value)))
    assert math.isnan(rounded(math.nan))
