"""Whoever repeats a measurement finds its command in order: recorded and shown command lines parse today."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import string
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.command import check_line

from semimetric.pipeline.resolve import resolve_benchmark

ROOT = Path(__file__).parent.parent
SHARED = ("jobs", "browsing")
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in SHARED)
BLOCK = re.compile(r"^```(?!py)\w*\n(?P<fenced>.*?)^```|(?P<indented>(?:^ {4,}[^\n]*\n)+)", re.DOTALL | re.MULTILINE)


def commands(value: Any) -> Iterator[str]:
    """What is kept under "command" or "commands" at any depth."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if name in ("command", "commands"):
                yield from [entry] if isinstance(entry, str) else entry
            else:
                yield from commands(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from commands(entry)


def shown(text: str) -> Iterator[str]:
    """Lines of a page that call a script, in blocks and in inline code; a block may set variables for its lines."""
    for block in BLOCK.finditer(text):
        variables: dict[str, str] = {}
        for line in map(str.strip, (block["fenced"] or block["indented"] or "").replace("\\\n", " ").splitlines()):
            if setting := re.fullmatch(r'(\w+)="(.*)"', line):
                variables[setting[1]] = setting[2]
            elif line.startswith("python benchmarks/"):
                yield string.Template(line).safe_substitute(variables)
    yield from re.findall(r"`(python benchmarks/[^`\n]*)`", text)


def lines() -> dict[str, str]:
    """All command lines, by the file they are in and a number."""
    found = {path: commands(json.loads(path.read_text())) for path in (ROOT / "benchmarks/results").rglob("*.json")}
    found |= {path: shown(path.read_text()) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
    numbered = ((path, enumerate(dict.fromkeys(found[path]), 1)) for path in sorted(found))
    return {f"{path.relative_to(ROOT)} {number}": line for path, mine in numbered for number, line in mine}


LINES = lines()


@cache
def script(name: str) -> ModuleType:
    """A script, imported by its path; what it imports from its folder is found there."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def parsed(name: str, words: list[str]) -> Namespace:
    """What a script makes of its command line; what is wrong with it is raised."""

    def refuse(message: str) -> None:
        raise ValueError(message)

    options = script(name).parser()
    options.error = refuse
    return options.parse_args(words)


def check(line: str) -> None:
    """Raise unless a line parses and its rows, datasets, methods and settings are there."""
    program, *words = shlex.split(line, comments=True)
    if program == "semimetric":
        check_line(words)
        return
    path = re.fullmatch(r"benchmarks/(\w+)\.py", words[0])
    assert program == "python", line
    if path is None or path[1] not in SCRIPTS:
        raise ValueError(f"there is no script {words[0]}")
    args = parsed(path[1], words[1:])
    if hasattr(script(path[1]), "jobs_of"):
        for job in script(path[1]).jobs_of(args):
            job.plan()
    else:
        resolve_benchmark("digits", **dict(entry.split("=") for entry in getattr(args, "set", [])))


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_recorded_or_shown_command_parses(line: str) -> None:
    check(line)


def test_commands_are_found_in_results_and_pages() -> None:
    assert {"benchmarks/results/search.json 1", "docs/search.md 1", "docs/measurements.md 20"} <= set(LINES)
    assert list(commands({"a": [{"commands": ["x", "y"]}], "command": "z"})) == ["x", "y", "z"]


def test_a_command_is_recorded_without_the_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["benchmarks/tried.py", "--out", "/a/b.json", "--set", "weights=/a/c/w.npz", "--data-dir", "photos/birds"]
    monkeypatch.setattr(sys, "argv", given)
    assert script("jobs").command() == (
        "python benchmarks/tried.py --out b.json --set weights=w.npz --data-dir photos/birds"
    )


def test_a_variable_holds_in_its_block() -> None:
    line = "    python benchmarks/linear.py $D\n"
    known, unknown = shown(f'    D="--seeds 2"\n{line}\nNext\n\n{line}')
    assert known == "python benchmarks/linear.py --seeds 2"
    check(known)
    with pytest.raises(ValueError, match=r"unrecognized arguments: \$D"):
        check(unknown)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_a_parser(name: str) -> None:
    assert script(name).parser().format_help()


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("python linear.py", "no script"),
        ("python benchmarks/nothing.py", "no script"),
        ("python benchmarks/linear.py --row 3", "unrecognized"),
        ("python benchmarks/consensus.py --rows mnist shuffled", "unrecognized"),
        ("python benchmarks/consensus.py --rows nothing", "there is no 'nothing'"),
        ("python benchmarks/consensus.py --rows mnist --set nothing=1", "no setting 'nothing'"),
        ("python benchmarks/sweep.py --method nothing --dataset digits", "method must be one of"),
        ("python benchmarks/sweep.py --method lrml --dataset digits --grid eta=1,2", "no setting 'eta'"),
        ("python benchmarks/vectors.py --set nothing=1", "no setting 'nothing'"),
        ("semimetric fit --nothing", "(?i)no such option"),
    ],
)
def test_a_command_that_is_out_of_date_is_told(line: str, wrong: str) -> None:
    with pytest.raises(Exception, match=wrong):
        check(line)
