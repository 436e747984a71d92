"""Learning again from the labels of the page, of a table: the settings stay, the labels are the new ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command import semimetric

pytest.importorskip("starlette", reason="needs semimetric[page]")

from semimetric.core.errors import InputError
from semimetric.serve.page.again import learn_again
from semimetric.serve.page.desk import Desk, compared
from semimetric.serve.page.server import next_run


def test_rows_of_a_table_are_shown_by_their_values_and_learned_again(tmp_path: Path, make_clusters) -> None:
    points, classes = make_clusters(0, 40, 3, 2)
    lines = ["id,a,b,c,label"]
    for row, (a, b, c) in enumerate(points.tolist()):
        lines.append(f"r{row},{a},{b},{c},{'xy'[classes[row]] if row < 12 else ''}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert semimetric("fit", tmp_path / "t.csv", "-o", tmp_path / "run", "--epochs", 2, "--json").code == 0
    desk = Desk(tmp_path / "run")
    shown = desk.examples([5])[0]
    assert shown["name"] == "r5"
    assert [name for name, _ in shown["values"]] == ["a", "b", "c"]
    with pytest.raises(InputError, match="rows of a table"):
        desk.similar_to_picture(b"", 3)
    desk.book.set([20, 22], "z")
    out = next_run(desk.book.path)
    assert out == tmp_path / "run-again-1"
    learn_again(tmp_path / "run", desk.book.labels, out)
    after = Desk(out, desk.book)
    assert after.trained_classes == ["x", "y", "z"]
    assert int((after.fitted.labels >= 0).sum()) == 14
    plans = [json.loads((folder / "config.json").read_text())["plan"] for folder in (tmp_path / "run", out)]
    assert plans[0] == plans[1]
    outcome = compared(desk, after)
    assert outcome["changed"] == len(outcome["from"])
    assert next_run(desk.book.path) == tmp_path / "run-again-2"
    desk.book.close()
