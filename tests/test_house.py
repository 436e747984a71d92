"""Rules of the house that a program can check."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import semimetric as sm

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "semimetric"

ROOMS = [
    "core",
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
    "model",
    "pipeline",
    "serve",
    "reporting",
    "paper",
    "estimators",
    "cli",
]
"""From left to right along the road; a room imports only from rooms to its left."""


def test_every_module_is_in_a_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*ROOMS}
    assert {path.name for path in PACKAGE.glob("*.py*")} == {"__init__.py", "__init__.pyi", "__main__.py"}


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
    for folder, most in ((PACKAGE, 350), (ROOT / "tests", 500), (ROOT / "benchmarks", 400)):
        for path in folder.rglob("*.py"):
            assert len(path.read_text().splitlines()) <= most, path


def test_no_function_is_longer_than_a_screen() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


@pytest.mark.parametrize("stub", sorted(PACKAGE.rglob("__init__.pyi")), ids=lambda path: path.parent.name)
def test_no_name_that_a_package_offers_is_hidden_by_a_module_of_that_name(stub: Path) -> None:
    offered = {
        alias.name
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert not offered & {path.stem for path in stub.parent.glob("*.py")}


def documented(doc: str) -> set[str]:
    """Parameters and attributes that numpydoc sections name."""
    sections = re.split(r"^(?:Parameters|Attributes)\n-+$", doc, flags=re.MULTILINE)[1:]
    lines = [line for section in sections for line in section.splitlines() if re.match(r"^[\w, ]+ : ", line)]
    return {name.strip() for line in lines for name in line.split(" :")[0].split(",")}


@pytest.mark.parametrize("name", sorted(sm.__all__))
def test_public_names_document_their_parameters(name: str) -> None:
    thing = getattr(sm, name)
    doc = inspect.getdoc(thing) or ""
    assert doc
    if dataclasses.is_dataclass(thing) and all(field.metadata.get("help") for field in dataclasses.fields(thing)):
        return  # documented by their help
    if inspect.isclass(thing) and issubclass(thing, Warning):
        return
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    wanted = [p.name for p in inspect.signature(thing).parameters.values() if p.kind not in kinds]
    assert {*wanted} <= documented(doc)


QUICK = {
    "import": "import semimetric",
    "help": "semimetric --help",
    "help of fit": "semimetric fit --help",
    "a mistyped path": "semimetric fit no/such/folder -o run",
    "a mistyped method": "semimetric fit --method magic -o run",
    "a mistyped run": "semimetric search no-run query.jpg",
    "a mistyped run to predict with": "semimetric predict no-run photos -o labels.csv",
    "datasets": "semimetric datasets",
}


@pytest.mark.parametrize("what", QUICK)
def test_what_needs_no_torch_does_not_wait_for_it(what: str) -> None:
    words = QUICK[what].split()
    code = (
        "import sys, semimetric\n"
        if words[0] == "import"
        else (
            f"import sys\nsys.argv = {words!r}\nfrom semimetric.cli.main import main\n"
            "try:\n    main()\nexcept SystemExit:\n    pass\n"
        )
    )
    heavy = "('torch', 'scipy', 'sklearn', 'pandas', 'pyarrow')"
    code += f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
