"""A search backend from outside of the package."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import text_index

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.search import ExactIndex, build_index, check_place, search_run_index
from semimetric.search.index import INDEXES

TESTS = Path(text_index.__file__).parent.parent


@pytest.fixture
def registered() -> Iterator[None]:
    assert sm.register_index(text_index.BACKEND) is text_index.BACKEND
    yield
    del INDEXES._loaded["text"]


@pytest.mark.usefixtures("registered")
def test_a_registered_backend_builds_opens_and_searches(tmp_path: Path, make_clusters) -> None:
    points = make_clusters(0, 200, 4, 5)[0]
    place = tmp_path / "run.txt"
    build_index(place, points)
    with sm.open_index(place, 4) as index:
        hits = index.search(points[:20], 7)
        assert (type(index), len(index)) == (text_index.TextIndex, 200)
    assert torch.equal(hits.rows, ExactIndex(points).search(points[:20], 7).rows)
    assert torch.equal(search_run_index(str(place), points, points[:20], 7, "semimetric").rows, hits.rows)
    with pytest.raises(InputError, match=r"place .* exists\. .*replace=True"):
        build_index(place, points)
    build_index(place, points[:50], replace=True)
    with sm.open_index(place, 4) as index:
        assert len(index) == 50
    with pytest.raises(InputError, match=r"width must be 4, the width of the index .*, got 3"):
        sm.open_index(place, 3)


@pytest.mark.usefixtures("registered")
def test_messages_name_a_registered_backend() -> None:
    with pytest.raises(InputError, match=r"place must be one of: .*; a file ending in \.txt \(text\)\. Got 'run'"):
        check_place("run")
    with pytest.raises(InputError, match="there is a search backend 'text' already"):
        sm.register_index(dataclasses.replace(text_index.BACKEND, places="elsewhere"))


def test_an_installed_package_offers_a_backend(tmp_path: Path) -> None:
    """What pip writes for a package with an entry point, beside an empty folder to work in."""
    package = tmp_path / "installed" / "text_index-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: text-index\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[semimetric.indexes]\ntext = helpers.text_index:BACKEND\n")
    program = """
import torch
from semimetric.search import build_index, open_index
points = torch.eye(5)
build_index("run.txt", points)
with open_index("run.txt", 5) as index:
    print(type(index).__name__, len(index), index.search(points, 1).rows.flatten().tolist())
"""
    path = os.pathsep.join([str(package.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "TextIndex 5 [0, 1, 2, 3, 4]\n"
    assert (tmp_path / "run.txt").is_file()
