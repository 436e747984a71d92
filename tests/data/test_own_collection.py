"""What a collection tells of itself."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.data import Collection
from semimetric.data.collection import label_texts, natural_key


def photographs(labels: list[str | None], skipped: dict[str, str] | None = None) -> Collection:
    names = tuple(f"{number}.jpg" for number in range(len(labels)))
    return Collection(names, tuple(labels), tuple(map(Path, names)), None, (), skipped or {})


def test_summary_and_json() -> None:
    skipped = {f"{number}.txt": "it is not an image by its name" for number in range(5)} | {"x.jpg": "it is empty"}
    collection = photographs(["b10", "b9", None, "b10", "b10"], skipped)
    assert collection.summary() == (
        "5 photographs: 4 labelled, 1 unlabelled.\n"
        "2 classes with 1 (b9) to 3 (b10) labels.\n"
        "6 skipped:\n"
        "  0.txt, 1.txt, 2.txt and 2 more: it is not an image by its name\n"
        "  x.jpg: it is empty"
    )
    told = collection.as_dict()
    assert json.loads(json.dumps(told)) == told
    assert list(told["classes"].items()) == [("b9", 1), ("b10", 3)]
    assert (told["examples"], told["labelled"], told["unlabelled"], told["features"]) == (5, 4, 1, None)
    assert told["skipped"] == skipped


def test_summary_of_a_table_of_even_classes() -> None:
    collection = Collection(("1", "2"), ("a", "b"), None, torch.zeros(2, 3), (), {})
    assert collection.summary() == "2 rows of 3 features: 2 labelled, 0 unlabelled.\n2 classes with 1 label each."
    assert collection.as_dict()["features"] == 3


def test_summary_of_few_classes_and_many_reasons() -> None:
    assert photographs([None]).summary() == "1 photograph: 0 labelled, 1 unlabelled."
    assert photographs(["a", "a"]).summary().endswith("1 class: a.")
    many = photographs([None], {f"row {number}": f"there is no file {number}" for number in range(9)})
    assert many.summary().endswith("row 4: there is no file 4\n  and 4 more, for reasons of their own")


def test_entries_must_fit_together() -> None:
    with pytest.raises(InputError, match="labels must have one entry per name, that is 2, got 1"):
        Collection(("a", "b"), ("x",), None, None, (), {})
    with pytest.raises(InputError, match="features must have one entry per name"):
        Collection(("a", "b"), ("x", "y"), None, torch.zeros(3, 2), (), {})
    with pytest.raises(InputError, match="'a' is there twice"):
        Collection(("a", "b", "a"), ("x", "y", "z"), None, None, (), {})


@given(st.lists(st.text(alphabet="aB10²٣é ", max_size=6)))
def test_natural_order_is_a_total_order(texts: list[str]) -> None:
    backwards = texts[::-1]
    assert sorted(texts, key=natural_key) == sorted(backwards, key=natural_key)


def test_natural_order_of_very_long_numbers() -> None:
    long, longer = "7" + "0" * 5000, "10" + "0" * 5000
    assert sorted([longer, long, "8"], key=natural_key) == ["8", long, longer]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, float("nan"), -1.0], ["1", "2", None, None]),
        ([1, -1, 0], ["1", None, "0"]),
        ([1.0, 1.5], ["1.0", "1.5"]),
        (["1.0", "", "10.00", "-1.0"], ["1", None, "10", None]),
        (["007", "08", "-2"], ["007", "08", "-2"]),
        (["1.0", "cat", "-1", "NaN"], ["1.0", "cat", None, None]),
        ([" cat\t", "", None, "\u00a0"], ["cat", None, None, None]),
        ([b"cat", b"caf\xe9"], ["cat", "caf\\xe9"]),
        ([True, False], ["True", "False"]),
        (["e\u0301", "\u00e9"], ["\u00e9", "\u00e9"]),
        ([], []),
    ],
)
def test_labels_as_text(values: list[object], expected: list[str | None]) -> None:
    assert label_texts(values) == expected
