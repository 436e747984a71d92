"""The page of results says what the committed records say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", ROOT / "benchmarks" / "results_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(script: ModuleType) -> None:
    before = script.PAGE.read_text()
    assert script.filled(before, script.Page().blocks()) == before, "run: python benchmarks/results_page.py"


def test_a_changed_figure_would_show(script: ModuleType) -> None:
    page = script.Page()
    line = page.lines["table4"][0]
    shown = f"{line.mean['nmi']:.1f} ± {line.deviation['nmi']:.1f}"
    assert shown in script.PAGE.read_text()
    page.lines["table4"][0].mean["nmi"] += 1.0
    assert script.filled(script.PAGE.read_text(), page.blocks()) != script.PAGE.read_text()


def test_a_block_that_nothing_fills_is_an_error(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match="a block 'table9', which nothing fills"):
        script.filled("<!-- begin table9 -->\n<!-- end table9 -->", script.Page().blocks())


def test_every_picture_of_the_page_is_there(script: ModuleType) -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", script.PAGE.read_text())
    assert pictures
    for picture in pictures:
        assert (script.PAGE.parent / picture).is_file(), picture
        assert (script.PAGE.parent / picture).with_suffix(".svg").is_file()


def test_every_large_difference_has_a_reason_or_is_unexplained(script: ModuleType) -> None:
    rows = re.search(r"<!-- begin differences -->\n(.*?)<!-- end", script.PAGE.read_text(), re.DOTALL)
    assert rows is not None
    assert all(line.split("|")[-2].strip() for line in rows[1].strip().splitlines()[2:])
