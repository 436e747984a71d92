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
from semimetric.core.errors import InputError, RunError
from semimetric.search import ExactIndex, Hits, Index, IndexBackend, build_index, check_place, search_run_index
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


class Proposing(Index):
    """Finds the right rows, farthest first, with distances that are a little wrong; the last row may be another."""

    def __init__(self, stored: torch.Tensor, last: int | None) -> None:
        self.width, self._exact, self._last = stored.shape[1], ExactIndex(stored), last

    def __len__(self) -> int:
        return len(self._exact)

    def search(self, queries: torch.Tensor, k: int) -> Hits:
        hits = self._exact.search(queries, k)
        rows = hits.rows if self._last is None else torch.cat([hits.rows[:, :-1], hits.rows[:, :1] + self._last], 1)
        return Hits(rows.flip(1), hits.distances.flip(1) * (1 + 1e-6))


@pytest.fixture(params=[None, 0, -1000, 1000], ids=["right", "twice", "negative", "beyond"])
def proposed(request: pytest.FixtureRequest, tmp_path: Path, make_clusters) -> Iterator[tuple[str, torch.Tensor]]:
    """A place whose index proposes rows, and the embeddings of its run, of which many are at equal distances."""
    points, place = make_clusters(0, 300, 2, 5)[0].round(), tmp_path / "run.proposing"
    place.touch()
    kind = IndexBackend("proposing", "", lambda *_: Proposing(points, request.param), print, (".proposing",))
    sm.register_index(kind)
    yield str(place), points
    del INDEXES._loaded["proposing"]


def test_what_an_index_proposes_is_ranked_by_the_embeddings_of_the_run(proposed, request) -> None:
    place, points = proposed
    if "right" not in request.node.name:
        with pytest.raises(RunError, match=r"run\.proposing"):
            search_run_index(place, points, points, 4, "semimetric")
        return
    wanted = search_run_index(None, points, points, 4, "semimetric")
    found = search_run_index(place, points, points, 4, "semimetric")
    assert torch.equal(found.distances, wanted.distances)
    assert (found.rows == wanted.rows).float().mean() > 0.9  # the index itself may leave out some at equal distances
