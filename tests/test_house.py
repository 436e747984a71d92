"""Rules of the house that a program can check."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "semimetric"

ROOMS = [
    "data",
    "encoders",
    "graph",
    "mining",
    "metric",
    "losses",
    "methods",
    "evaluation",
    "search",
    "training",
    "own",
    "reporting",
    "paper",
]
"""From left to right along the road; a room imports only from rooms to its left."""


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = (name.split(".") for name in names)
    return {part[1] for part in parts if part[0] == "semimetric" and len(part) > 1 and part[1] in ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_from_their_left(room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in (PACKAGE / room).rglob("*.py"):
        assert imported_rooms(path) <= allowed, path


def test_training_names_no_method() -> None:
    for path in (PACKAGE / "training").rglob("*.py"):
        assert "affinity_triplets" not in path.read_text()
        assert "affinity-triplets" not in path.read_text()


def test_import_needs_only_the_core() -> None:
    blocked = ["typer", "rich", "click", "matplotlib", "pandas", "torchvision", "pydantic", "pymanopt"]
    blocked += ["faiss", "pymilvus", "milvus_lite", "onnx", "onnxruntime", "onnxscript", "optuna", "pyarrow"]
    code = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in blocked)
    code += "import semimetric\nfor name in semimetric.__all__: getattr(semimetric, name)\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_method_has_its_page() -> None:
    from semimetric.methods import method_names

    for name in method_names():
        assert (ROOT / "docs" / "methods" / f"{name}.md").is_file()


def test_no_file_is_two_rooms_in_one() -> None:
    for folder, most in ((PACKAGE, 400), (ROOT / "tests", 500), (ROOT / "benchmarks", 400)):
        for path in folder.rglob("*.py"):
            assert len(path.read_text().splitlines()) <= most, path


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
