"""What a user's or a stranger's names hold never steers a terminal or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command import semimetric
from helpers.sealed import reseal
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.reporting.progress import RichProgress
from semimetric.reporting.terminal import PlainConsole, visible

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")
EVIL = "\x1b]0;owned\x07[/x][red]\x9b31m\u202egnp.exe\r"
FORMULA = '=HYPERLINK("http://example.org")'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose examples, classes and version bear names that would steer a terminal."""
    folder = tmp_path_factory.mktemp("evil") / "run"
    features, classes = load_wine(return_X_y=True)
    sm.save(sm.LRML(n_components=2).fit(features, np.where(np.arange(178) % 4 == 0, classes, -1)), folder)
    names = json.loads((folder / "examples.json").read_text())
    names |= {"names": [f"{EVIL}{row}" for row in range(178)], "classes": [EVIL, FORMULA, "-2.5"]}
    (folder / "examples.json").write_text(json.dumps(names))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"versions": {"torch": f"{EVIL}\nerror: all lost"}}))
    reseal(folder)
    np.save(folder.parent / "new.npy", features[:60])
    return folder


def harmless(text: str) -> bool:
    return all(character == "\n" or character.isprintable() for character in text)


@pytest.mark.parametrize("words", [("search", "new.npy", "-k", 2), ("suggest", "-n", 3)])
def test_names_are_shown_and_not_obeyed(run: Path, words: tuple[object, ...]) -> None:
    command, *others = words
    done = semimetric(command, run, *(run.parent / word if word == "new.npy" else word for word in others))
    assert done.code == 0, done.err
    assert harmless(done.out)
    assert harmless(done.err)
    assert r"\x1b]0;owned\x07[/x][red]\x9b31m\u202egnp.exe" in done.out
    assert [line[:6] for line in done.err.splitlines()] == ["note: "]


def test_errors_are_one_harmless_line(tmp_path: Path) -> None:
    told = semimetric("search", tmp_path / f"{EVIL}\nerror: all lost", "x.npy")
    assert harmless(told.err)
    assert r"\x1b]0;owned" in told.sentence()


def test_a_terminal_gets_no_sequences_but_those_of_styles() -> None:
    written = io.StringIO()
    console = PlainConsole(file=written, force_terminal=True, width=200, color_system=None)
    RichProgress(console).warn(EVIL)
    console.print(f"[bold]{EVIL}")
    assert "\x1b" not in written.getvalue()
    assert r"[bold]\x1b]0;owned" in written.getvalue()


def test_printable_text_stays() -> None:
    assert visible("größer/日本 👩\u200d🚀.jpg") == "größer/日本 👩\u200d🚀.jpg"


@pytest.mark.parametrize("flags", [[], ["--raw"]])
def test_cells_are_no_formulas_unless_raw(run: Path, tmp_path: Path, flags: list[str]) -> None:
    out = tmp_path / "out.csv"
    assert semimetric("predict", run, run.parent / "new.npy", "-o", out, *flags).code == 0
    labels = {row["label"] for row in csv.DictReader(out.read_text().splitlines())}
    assert labels & {FORMULA, f"'{FORMULA}"} == ({FORMULA} if flags else {f"'{FORMULA}"})
    assert "'-2.5" not in labels
