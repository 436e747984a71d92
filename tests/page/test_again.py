"""Learning again from the labels of the page: with the settings of the run, and judged on labels held back."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command import semimetric
from helpers.own_photos import write_folder, write_photo

pytest.importorskip("starlette", reason="needs semimetric[page]")

from semimetric.core.errors import InputError
from semimetric.data import read_collection
from semimetric.data.readers.folder import path_of
from semimetric.model.folder import load_run
from semimetric.serve.page.again import Judgement, check_can_learn, learn_again, main, request_of
from semimetric.serve.page.desk import Desk, compared
from semimetric.serve.page.session import next_run


def write_table(path: Path, points: Any, labels: list[str | None]) -> None:
    """A table of points with names, columns a, b, ... and labels."""
    lines = [",".join(["id", *"abcdef"[: points.shape[1]], "label"])]
    lines += [f"r{row},{','.join(map(str, point))},{labels[row] or ''}" for row, point in enumerate(points.tolist())]
    path.write_text("\n".join(lines))


def plan_of(run: Path) -> Any:
    """The settings of a run."""
    return json.loads((run / "config.json").read_text())["plan"]


def test_rows_of_a_table_are_shown_by_their_values_and_learned_again(tmp_path: Path, make_clusters) -> None:
    points, classes = make_clusters(0, 40, 3, 2)
    write_table(tmp_path / "t.csv", points, ["xy"[n] if row < 12 else None for row, n in enumerate(classes.tolist())])
    assert semimetric("fit", tmp_path / "t.csv", "-o", tmp_path / "run", "--epochs", 2, "--json").code == 0
    desk = Desk(tmp_path / "run")
    shown = desk.examples([5])[0]
    assert shown["name"] == "r5"
    assert [name for name, _ in shown["values"]] == ["a", "b", "c"]
    with pytest.raises(InputError, match="rows of a table"):
        desk.similar_to_picture(b"", 3)
    desk.book.label([20, 22], "z", "me")
    out = next_run(desk.book.path)
    assert out == tmp_path / "run-again-1"
    few = learn_again(tmp_path / "run", desk.book.labels, out)
    assert few == Judgement(why="6 new labels are needed to judge by; there are 2.")
    after = Desk(out, desk.book)
    assert after.trained_classes == ["x", "y", "z"]
    assert int((after.fitted.labels >= 0).sum()) == 14
    assert "from" not in json.loads((out / "result.json").read_text())
    assert plan_of(tmp_path / "run") == plan_of(out)
    outcome = compared(desk, after)
    assert outcome["changed"] == len(outcome["from"])
    assert next_run(desk.book.path) == tmp_path / "run-again-2"
    desk.book.close()
    warm = ("--from", tmp_path / "run", "-o", tmp_path / "warm", "--k", 4, "--epochs", 0)
    assert semimetric("fit", tmp_path / "t.csv", *warm).code == 0
    plan = request_of(load_run(tmp_path / "warm")).plan(read_collection(tmp_path / "t.csv"))
    assert plan.training.epochs == 40
    assert plan.as_dict()["method_settings"]["k"] == 4


@pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning")
def test_both_models_are_judged_by_labels_that_neither_learned_from(tmp_path: Path, make_clusters) -> None:
    """The new labels contradict what can be seen: a model that had learned from them would name them as they say."""
    points, classes = make_clusters(0, 60, 4, 2)
    write_table(tmp_path / "t.csv", points, ["xy"[n] if row < 10 else None for row, n in enumerate(classes.tolist())])
    done = semimetric("fit", tmp_path / "t.csv", "-o", tmp_path / "run", "--method", "lrml", "--json")
    assert done.code == 0, done.err
    for name, letters in (("right", "xy"), ("wrong", "yx")):
        told: list[dict[str, int]] = []
        desk = Desk(tmp_path / "run")
        for row in range(10, 22):
            desk.book.label([row], letters[classes[row]], "me")
        judged = learn_again(tmp_path / "run", desk.book.labels, tmp_path / name, tell=told.append)
        assert judged.labels == 12
        assert judged.before == (1.0 if name == "right" else 0.0)
        assert judged.after == 1.0 if name == "right" else judged.after < 0.7
        assert told == [{"judging": part, "of": 3} for part in (1, 2, 3)]
        if name == "wrong":
            asked = learn_again(tmp_path / "run", desk.book.labels, tmp_path / "unjudged", judge=False)
            assert asked == Judgement(why="Nothing was judged, as you asked.")
            unheard = learn_again(tmp_path / "run", desk.book.labels, tmp_path / "unheard", tell=_not_heard)
            assert unheard == Judgement(why="The new model is in use, but judging it failed: nobody listens.")
            assert len(load_run(tmp_path / "unheard").fitted.labels) == 60
        desk.book.close()
        desk.book.path.unlink()


def _not_heard(told: dict[str, int]) -> None:
    raise OSError("nobody listens.")


def test_examples_that_were_added_while_the_page_was_open_are_learned_too(place: Path) -> None:
    more = place / "more"
    for number in range(2):
        write_photo(more / ("red" if number else "unlabelled") / f"{number}.png", (200, 20, 20), 900 + number)
    desk = Desk(place / "run")
    assert semimetric("add", place / "run", more).code == 0
    desk.book.label([20], "red", "me")
    learn_again(place / "run", desk.book.labels, place / "new")
    after = Desk(place / "new", desk.book)
    assert (len(desk.names), len(after.names)) == (73, 75)
    assert after.book.labels[73:] == ["red", None] or after.book.labels[73:] == [None, "red"]
    assert after.book.labelled == 14
    assert len(desk.labels()) == 73
    assert max(compared(desk, after)["rows"], default=0) < 73
    desk.book.close()


def test_a_run_of_format_1_cannot_learn_again(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="format 1, which does not keep the settings"):
        check_can_learn(load_run(Path(__file__).parent.parent / "model" / "format-1" / "own-wine", "cpu"), tmp_path)


def test_an_error_that_nobody_foresaw_is_a_sentence_in_the_answer(tmp_path: Path) -> None:
    wanted = {
        "run": str(tmp_path),
        "labels": 5,
        "out": 7,
        "data_dir": None,
        "source": None,
        "judge": True,
        "answer": str(tmp_path / "answer.json"),
    }
    (tmp_path / "request.json").write_text(json.dumps(wanted))
    assert main(tmp_path / "request.json") == 2
    assert json.loads((tmp_path / "answer.json").read_text())["error"].startswith("TypeError: ")


def test_the_page_reads_nothing_that_a_method_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def learn(*given: Any) -> Judgement:
        sys.stdout.write("hello from a method\n")
        given[-3]({"judging": 1, "of": 3})
        return Judgement(why="none")

    monkeypatch.setattr("semimetric.serve.page.again.learn_again", learn)
    wanted = {"run": "r", "labels": [], "out": "o", "data_dir": None, "source": None, "judge": True, "digests": []}
    wanted["answer"] = str(tmp_path / "a")
    (tmp_path / "request.json").write_text(json.dumps(wanted))
    assert main(tmp_path / "request.json") == 0
    assert capsys.readouterr().out == '{"judging": 1, "of": 3}\n'


def test_photographs_whose_names_are_no_utf8_are_found_by_the_names_of_the_run(tmp_path: Path) -> None:
    photos = write_folder(tmp_path, labelled=1, unlabelled=1)
    (photos / "unlabelled" / "red ü 0.png").rename(os.fsdecode(os.fsencode(photos) + b"/unlabelled/r\xfe\xffd.png"))
    found = read_collection(photos)
    assert "unlabelled/r\\xfe\\xffd.png" in found.names
    assert found.paths == tuple(path_of(photos, name) for name in found.names)


@pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning")
@pytest.mark.parametrize("change", ["inserted", "shuffled", "edited"])
def test_learning_again_keeps_labels_on_their_rows_when_a_table_changed(
    change: str, tmp_path: Path, make_clusters: Any
) -> None:
    """Rows without ids are named by their numbers, which move when the table is edited."""
    points, classes = make_clusters(0, 40, 3, 2)
    rows = [
        f"{','.join(map(str, point))},{'xy'[n] if row < 12 else ''}\n"
        for row, (point, n) in enumerate(zip(points.tolist(), classes.tolist(), strict=True))
    ]
    table = tmp_path / "t.csv"
    table.write_text("a,b,c,label\n" + "".join(rows))
    assert semimetric("fit", table, "-o", tmp_path / "run", "--method", "lrml", "--json").code == 0
    before = Desk(tmp_path / "run")
    for row in range(12, 24):
        before.book.label([row], "xy"[classes[row]], "me")
    if change == "inserted":
        rows = ["9,9,9,\n", *rows]
    elif change == "shuffled":
        rows = rows[::-1]
    else:
        rows[13] = f"7,7,7{rows[13][-2:]}"
    table.write_text("a,b,c,label\n" + "".join(rows))
    desk = Desk(tmp_path / "run")  # as the page after a restart
    if change != "edited":
        assert desk.book.labels == before.book.labels
    shown = [[float(value) for _, value in desk.pictures.values(row)] for row in range(40)]
    same = [row for row in range(40) if change != "edited" or row != 13]
    assert [shown[row] for row in same] == [pytest.approx(points[row].tolist(), rel=1e-3) for row in same]
    judged = learn_again(tmp_path / "run", before.book.labels, tmp_path / "new", digests=before.book.evidence())
    assert judged.after is not None
    assert judged.after > 0.9
    learned = load_run(tmp_path / "new").fitted
    names, labels = learned.examples.names, [None if n < 0 else "xy"[n] for n in learned.labels.tolist()]
    expected = ["xy"[n] if row < 24 else None for row, n in enumerate(classes.tolist())]
    if change == "edited":
        assert judged.unused == ("row 15",)
        expected[13] = None
        assert "1 rows of t.csv have changed" in desk.facts()["missing"]
    assert dict(zip(names, labels, strict=True)) == {f"row {row + 2}": label for row, label in enumerate(expected)}
