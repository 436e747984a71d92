"""``semimetric search``: examples of the run by name, many queries, and files of hits."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from helpers.command import semimetric
from sklearn.datasets import load_wine


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features, classes = load_wine(return_X_y=True)
    folder = tmp_path_factory.mktemp("a folder")
    np.savez(folder / "wine.npz", X=features, y=np.where(np.arange(178) % 4 == 0, classes, -1))
    done = semimetric("fit", folder / "wine.npz", "--method", "lrml", "--out", folder / "my run")
    assert f"next: semimetric search '{folder / 'my run'}' QUERY, or predict, embed" in done.out
    return folder / "my run"


def test_a_name_that_suggest_prints_is_a_query(run: Path) -> None:
    names = [line["name"] for line in semimetric("suggest", run, "-n", 2, "--json").json()["suggestions"]]
    hits = semimetric("search", run, *names, "-k", 3, "--json").json()["hits"]
    assert list(hits) == names
    for name, lines in hits.items():
        assert len(lines) == 3
        assert name not in [line["name"] for line in lines]
        assert lines[0]["distance"] > 0


def test_the_number_of_a_row_is_answered_with_its_name(run: Path) -> None:
    assert "say: 'row 17'" in semimetric("search", run, "17").sentence()


def test_many_queries_print_the_first_and_say_how_to_get_all(run: Path, tmp_path: Path) -> None:
    data = run.parent / "wine.npz"
    shown = semimetric("search", run, data, "-k", 2).out
    assert shown.count("nearest to") == 10
    assert "168 more queries: --out FILE.csv writes the hits of all, --limit 178 prints them" in shown
    assert semimetric("search", run, data, "-k", 2, "--limit", 178).out.count("nearest to") == 178
    out = tmp_path / "hits.csv"
    assert semimetric("search", run, data, "-k", 2, "--out", out).out == f"hits of 178 queries written to {out}\n"
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 356
    assert [row["rank"] for row in rows[:2]] == ["1", "2"]
    assert "exists" in semimetric("search", run, data, "--out", out).sentence()
    assert "must end in .csv" in semimetric("search", run, data, "--out", tmp_path / "hits.txt").sentence()
