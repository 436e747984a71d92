"""Tables of mixed columns on the command line."""

from __future__ import annotations

import csv
from pathlib import Path

from helpers.command import semimetric
from helpers.wine import NAMES, write_wine

QUICK = ["--epochs", 2, "--passes", 1]


def test_a_table_of_mixed_types(tmp_path: Path) -> None:
    odd = {
        "price": ["", *[5 * (row % 9) for row in range(177)]],
        "colour": ["red", "white"] * 89,
        "wine_no": range(178),
    }
    wines = write_wine(tmp_path / "wine.csv", extra=odd)
    run, out = tmp_path / "run", tmp_path / "out.csv"
    fit = ["fit", wines, "--label-column", "grape", "--id-column", "bottle", "--out", run, *QUICK]
    done = semimetric(*fit, "--types", "f3=numeric, colour=categorical", "--drop", "f0,f1")
    assert "178 rows of 15 features" in done.out
    assert "identifier: 'wine_no'. Keep it with --types wine_no=TYPE" in done.out
    text = wines.read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join([text[0] + ",more", text[1] + ",", "too,short", text[2] + ",7"]))
    predicted = semimetric("predict", run, tmp_path / "new.csv", "--out", out)
    assert "columns that the run does not know and that are not used: 'more'" in predicted.err
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["name"] for row in rows] == ["wine 0", "row 3", "wine 1"]
    assert rows[1] | {"reason": ""} == dict.fromkeys(rows[1], "") | {"name": "row 3"}
    assert rows[1]["reason"] == "its number of fields is 2, that of the header 19"
    assert rows[0]["label"] in NAMES
    assert "takes numbers" in semimetric("export", run, "--onnx").sentence()
    lost = semimetric("predict", run, write_wine(tmp_path / "lost.csv", extra={"price": ["low"] * 178}), "--json")
    assert "lacks the column 'colour'" in lost.sentence()
    bad = semimetric("fit", wines, "--out", tmp_path / "other", "--types", "f3")
    assert "--types must be NAME=TYPE" in bad.sentence()
