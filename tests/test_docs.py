"""The pages keep their word: their Python runs, and their command lines parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from helpers.command import check_line, semimetric
from helpers.pages import run_program

ROOT = Path(__file__).parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/methods/*.md")
    for path in sorted(ROOT.glob(pattern))
}
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.*?) -->\n)?```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
NEEDS = {"docs/search.md": ("faiss", "milvus_lite"), "docs/export.md": ("onnx", "onnxruntime", "onnxscript")}
NEEDS |= {"docs/tuning.md": ("optuna",)}
"""Extras that a page tells to install."""
RUNS = {"docs/export.md": "fit --method triplet --epochs 1 --passes 2 --encoder small-cnn --out runs/digits"}
"""Commands that make a run that a page starts from."""


def programs() -> dict[str, tuple[str, str]]:
    """By name: the page and what is run of it, each block of the README on its own, any other page as a whole."""
    found: dict[str, tuple[str, str]] = {}
    for page, text in PAGES.items():
        blocks = [block["code"] for block in BLOCK.finditer(text) if block["reason"] is None]
        if page == "README.md":
            found |= {f"{page} {number}": (page, code) for number, code in enumerate(blocks, 1)}
        elif blocks:
            found[page] = page, "\n".join(blocks)
    return found


PROGRAMS = programs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_python_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, code = PROGRAMS[name]
    for package in NEEDS.get(page, ()):
        pytest.importorskip(package, reason=f"{page} needs {package}")
    monkeypatch.chdir(tmp_path)
    if page in RUNS:
        assert semimetric(*RUNS[page].split()).code == 0
    said = tmp_path.with_suffix(".txt")
    assert run_program(code, tmp_path, said) == 0, said.read_text()


def test_every_promise_of_the_security_page_names_a_test_that_is_there() -> None:
    table = (ROOT / "SECURITY.md").read_text().split("## What is promised")[1].split("## ")[0]
    promises = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(promises) >= 10
    for promise in promises:
        named = re.findall(r"`(tests/[^`]+)`", promise)
        assert named, promise
        assert all((ROOT / name).is_file() for name in named), promise


@pytest.mark.parametrize("page", PAGES)
def test_only_a_block_of_python_is_marked_as_not_run_and_with_a_reason(page: str) -> None:
    reasons = [block["reason"] for block in BLOCK.finditer(PAGES[page]) if block["reason"] is not None]
    assert len(reasons) == PAGES[page].count("<!-- not run")
    assert all(reason.strip() for reason in reasons)
    assert len(list(BLOCK.finditer(PAGES[page]))) == len(re.findall(r"^```\s*py", PAGES[page], re.MULTILINE))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\na\n```\n", [(None, "a\n")]),
        ("<!-- not run: big -->\n```python\na\n```\n```python\nb\n```\n", [("big", "a\n"), (None, "b\n")]),
        ("<!-- not run: big -->\n\n```python\na\n```\n", [(None, "a\n")]),
        ("```\na\n```\n", []),
    ],
)
def test_a_mark_holds_for_the_block_right_below_it(text: str, expected: list[tuple[str | None, str]]) -> None:
    assert [(block["reason"], block["code"]) for block in BLOCK.finditer(text)] == expected


def shown_lines() -> dict[str, list[str]]:
    """By page and text: the words after the command's name, in indented lines, shell blocks and inline code."""
    found = {}
    for page, text in PAGES.items():
        fenced = "\n".join(re.findall(r"^```(?!py)\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        places = (text, r"^ {4,}(?:\w[\w ]*: )?(?:\$ )?(semimetric .*)$"), (fenced, r"^(?:\$ )?(semimetric .*)$")
        for part, pattern in (*places, (text, r"`(semimetric [^`\n]*)`")):
            for line in re.findall(pattern, part.replace("\\\n", " "), re.MULTILINE):
                words = shlex.split(line, comments=True)[1:]
                found[f"{page}: {' '.join(words)}"] = words
    return found


LINES = shown_lines()


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_of_a_page_parses(line: str) -> None:
    check_line(LINES[line])


def test_command_lines_are_found_in_pages() -> None:
    assert {"README.md", "docs/own-data.md", "docs/methods/consensus.md"} <= {line.split(":")[0] for line in LINES}
    assert {"fit", "search", "predict", "tune"} <= {words[0] for words in LINES.values()}


@pytest.mark.parametrize(
    "line", ["fi", "fit --nothing 3", "methods -o", "suggest one two", "fit --out", "datasets get"]
)
def test_a_wrong_command_line_is_told(line: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|requires an argument|no command|no argument"):
        check_line(line.split())
