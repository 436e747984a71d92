from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.search import recall

from semimetric.core.errors import InputError, RunError
from semimetric.search import ExactIndex, FaissIndex, MilvusIndex, build_index, open_index
from semimetric.search.milvus_lite_server import LiteServer

pytest.importorskip("pymilvus", reason="needs semimetric[milvus]")
pytest.importorskip("milvus_lite", reason="needs semimetric[milvus]")

from helpers.milvus import contents


class Killed(Exception):
    """Stands for a kill in the middle of loading."""


@pytest.fixture
def points(make_clusters) -> torch.Tensor:
    return make_clusters(0, 600, 12, 6)[0]


def test_the_three_agree(tmp_path: Path, points: torch.Tensor) -> None:
    pytest.importorskip("faiss", reason="needs semimetric[faiss]")
    queries = points[:40] + 0.01
    wanted = ExactIndex(points).search(queries, 10)
    with MilvusIndex(tmp_path / "run.db", "run", 12) as index:
        index.load(points)
        others = [index.search(queries, 10), FaissIndex.build(points).search(queries, 10)]
    for hits in others:
        assert torch.equal(hits.rows, wanted.rows)
        assert (hits.distances - wanted.distances).abs().max() < 1e-4


def test_finds_nearly_all(tmp_path: Path, make_clusters) -> None:
    rows, _ = make_clusters(1, 5200, 32, 20)
    with MilvusIndex(tmp_path / "run.db", "run", 32) as index:
        index.load(rows[:5000])
        assert recall(index.search(rows[5000:], 10), ExactIndex(rows[:5000]).search(rows[5000:], 10)) >= 0.95


@pytest.mark.slow
def test_finds_nearly_all_of_100_000(tmp_path: Path, make_clusters) -> None:
    """With one thread loading takes about 45 s, most of it for the graph."""
    rows, _ = make_clusters(0, 100_500, 64, 100, 0.1)
    stored, queries = rows[:100_000], rows[100_000:]
    with MilvusIndex(tmp_path / "run.db", "run", 64) as index:
        index.load(stored)
        assert recall(index.search(queries, 10), ExactIndex(stored).search(queries, 10)) >= 0.95


def test_a_url_goes_the_same_way(tmp_path: Path, points: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILVUS_TOKEN", "a:secret")
    server = LiteServer(tmp_path / "served.db")
    with MilvusIndex(server.address, "run", 12) as index:
        assert index.uri.startswith("http://")
        index.load(points)
        index.load(points)
        assert len(index) == 600
        assert index.search(points[:5], 1).rows.flatten().tolist() == [0, 1, 2, 3, 4]
        assert "secret" not in repr(vars(index._collection))
    with open_index(server.address, 12, collection="run") as index:
        assert len(index) == 600
    server.stop()


def test_more_asked_than_stored_and_many_copies(tmp_path: Path) -> None:
    stored = torch.cat([torch.zeros(60, 4), torch.eye(4)])
    with MilvusIndex(tmp_path / "run.db", "run", 4) as index:
        index.load(stored)
        hits = index.search(torch.zeros(2, 4), 1000)
    assert hits.rows.sort(dim=1).values.equal(torch.arange(64).expand(2, -1))
    assert hits.rows[:, :60].equal(torch.arange(60).expand(2, -1))


def test_loading_again_changes_nothing(tmp_path: Path, points: torch.Tensor) -> None:
    seen: list[tuple[int, int]] = []
    with MilvusIndex(tmp_path / "run.db", "run", 12) as index:
        index.load(points, batch_size=250, progress=lambda *done: seen.append(done))
    assert seen == [(250, 600), (500, 600), (600, 600)]
    first = contents(tmp_path / "run.db", "run")
    with MilvusIndex(tmp_path / "run.db", "run", 12) as index:
        index.load(points, batch_size=7, progress=lambda *done: pytest.fail("nothing was missing"))
        assert len(index) == 600
    assert contents(tmp_path / "run.db", "run") == first
    assert [row["row"] for row in first] == list(range(600))
    assert [row["name"] for row in first] == [str(number) for number in range(600)]
    assert torch.equal(torch.tensor([row["embedding"] for row in first]), points)


def test_a_broken_load_leaves_what_was_there_before(tmp_path: Path, points: torch.Tensor) -> None:
    """A copy of the folder while it is loaded is what a killed process leaves."""
    left = []

    def stop(done: int, total: int) -> None:
        if done >= 300:
            left.append(shutil.copytree(tmp_path / "run.db", tmp_path / f"left {len(left)}.db"))
            raise Killed

    with MilvusIndex(tmp_path / "run.db", "run", 12) as index:
        with pytest.raises(Killed):
            index.load(points, batch_size=100, progress=stop)
        with pytest.raises(InputError):  # no collection
            index.search(points, 1)
        index.load(points)
        with pytest.raises(Killed):
            index.load(points + 1, batch_size=100, progress=stop, replace=True)
        assert index.search(points[7:8], 1).rows.item() == 7
        assert not list((tmp_path / "run.db").glob("semimetric*"))
    assert all(list(folder.glob("semimetric*")) for folder in left)
    for folder in left:
        with MilvusIndex(folder, "run", 12) as index:
            if folder == left[1]:
                assert index.search(points[7:8], 1).rows.item() == 7
            index.load(points + 1, replace=folder == left[1])
            assert index.search(points[9:10] + 1, 1).rows.item() == 9
        assert not list(folder.glob("semimetric*"))
        assert [row["row"] for row in contents(folder, "run")] == list(range(600))


def test_files_of_others_where_a_collection_is_built_are_never_removed(tmp_path: Path, points: torch.Tensor) -> None:
    build_index(tmp_path / "run.db", points)
    theirs = tmp_path / "run.db" / "semimetric-loading.db" / "collections" / "thesis.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    with pytest.raises(InputError, match=r"thesis\.txt"):
        build_index(tmp_path / "run.db", points + 1, replace=True)
    assert theirs.read_text() == "precious"
    with open_index(tmp_path / "run.db", 12) as index:
        assert index.search(points[5:6], 1).rows.item() == 5


@pytest.mark.parametrize("kind", ["*.parquet", "*.idx", "manifest.json", "schema.json", "*.sha256", "gone", "more"])
def test_files_that_changed_since_the_load_are_refused_and_replaced(
    tmp_path: Path, points: torch.Tensor, kind: str
) -> None:
    build_index(tmp_path / "run.db", points, collection="run")
    folder = tmp_path / "run.db" / "collections" / "run"
    changed = next(folder.rglob("*.idx" if kind in ("gone", "more") else kind))
    if kind == "more":
        shutil.copy(changed, folder / "wal" / "wal_1.arrow")
    elif kind == "gone":
        changed.unlink()
    else:
        content = bytearray(changed.read_bytes())
        content[len(content) // 2] ^= 1
        changed.write_bytes(content)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with MilvusIndex(tmp_path / "run.db", "run", 12) as index:
        for read in (lambda: index.search(points, 1), lambda: len(index)):
            with pytest.raises(RunError, match=r"collection 'run' .*run\.db.*replace=True"):
                read()
        with pytest.raises(InputError, match="replace=True"):
            index.load(points)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        index.load(points, replace=True)
        assert index.search(points[:40], 1).rows.flatten().tolist() == list(range(40))


def test_a_collection_without_a_seal_is_refused(tmp_path: Path, points: torch.Tensor) -> None:
    """As an earlier version loaded it, or another program by the same fields."""
    build_index(tmp_path / "run.db", points)
    next((tmp_path / "run.db").rglob("*.sha256")).unlink()
    with open_index(tmp_path / "run.db", 12) as index, pytest.raises(RunError, match="replace=True"):
        index.search(points, 1)
    with pytest.raises(InputError, match="replace=True"):
        build_index(tmp_path / "run.db", points)
    build_index(tmp_path / "run.db", points, replace=True)
    with open_index(tmp_path / "run.db", 12) as index:
        assert len(index) == 600


def test_another_run_is_refused_or_replaced(tmp_path: Path, points: torch.Tensor) -> None:
    names = [f"photo {row}.jpg" for row in range(len(points))]
    with MilvusIndex(tmp_path / "run.db", "run", 12) as index:
        index.load(points, names)
        for other, called in ((points + 1, names), (points, None), (points[:100], names[:100])):
            with pytest.raises(InputError, match=r"'run' is a collection at .*another run.*replace=True"):
                index.load(other, called)
        assert len(index) == 600
        index.load(points[:100] + 1, replace=True)
        assert len(index) == 100
        assert index.search(points[5:6] + 1, 1).rows.item() == 5
    with MilvusIndex(tmp_path / "run.db", "run", 3) as narrow:
        with pytest.raises(InputError, match="width must be 12, the width of collection 'run', got 3"):
            narrow.search(torch.zeros(1, 3), 1)
        with pytest.raises(InputError, match="another run"):
            narrow.load(points[:, :3])
        narrow.load(points[:, :3], replace=True)
        assert narrow.search(points[7:8, :3], 1).rows.item() == 7


def test_a_collection_of_somebody_else_is_left_alone(tmp_path: Path, points: torch.Tensor) -> None:
    from pymilvus import MilvusClient

    server = LiteServer(tmp_path / "run.db")
    client = MilvusClient(server.address)
    client.create_collection("run", dimension=12)
    with MilvusIndex(server.address, "run", 12) as index:
        with pytest.raises(InputError, match="with the fields id, vector, which semimetric did not make"):
            index.load(points, replace=True)
        with pytest.raises(InputError, match="semimetric did not make"):
            index.search(points, 1)
    assert client.has_collection("run")
    client.close()
    server.stop()


@pytest.mark.parametrize("left", ["folder", "folder with files"])
def test_a_collection_half_made_by_a_killed_process_is_made_again(
    tmp_path: Path, points: torch.Tensor, left: str
) -> None:
    half = tmp_path / "run.db" / "collections" / "run"
    half.mkdir(parents=True)
    (tmp_path / "run.db" / "LOCK").touch()
    if left != "folder":
        (half / "schema.json.tmp").write_text("{")
    with MilvusIndex(tmp_path / "run.db", "run", 12) as index:
        index.load(points)
        assert len(index) == 600


def test_files_of_others_in_a_collection_are_never_removed(tmp_path: Path, points: torch.Tensor) -> None:
    theirs = tmp_path / "run.db" / "collections" / "run" / "thesis.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    (tmp_path / "run.db" / "LOCK").touch()
    with (
        MilvusIndex(tmp_path / "run.db", "run", 12) as index,
        pytest.raises(InputError, match=r"thesis\.txt is no file"),
    ):
        index.load(points)
    with MilvusIndex(tmp_path / "run.db", "other", 12) as index:
        index.load(points)
        shutil.move(theirs, tmp_path / "run.db" / "collections" / "other" / "thesis.txt")
        with pytest.raises(InputError, match=r"thesis\.txt is no file"):
            index.load(points + 1, replace=True)
    assert (tmp_path / "run.db" / "collections" / "other" / "thesis.txt").read_text() == "precious"


def test_closing_unlocks_and_ends(tmp_path: Path, points: torch.Tensor) -> None:
    index = MilvusIndex(tmp_path / "run.db", "run", 12)
    with pytest.raises(RunError, match="another MilvusIndex of this one, has it open"):
        MilvusIndex(tmp_path / "run.db", "other", 12)
    index.close()
    index.close()
    with pytest.raises(RunError, match="is closed and cannot search"):
        index.search(points, 1)
    with MilvusIndex(tmp_path / "run.db", "run", 12) as again, pytest.raises(InputError, match="is no collection at"):
        again.search(points, 1)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("run", "uri must be a path that ends in .db"),
        ("ftp://host/run.db", "uri must be a path that ends in .db"),
        ("http://host/run.db", "uri must be a path that ends in .db"),
        ("https://me:secret@host:19530", "uri must not hold a user or password"),
        ("none/run.db", "there is no folder 'none'"),
    ],
)
def test_refuses_uris(uri: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        MilvusIndex(uri, "run", 12)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("inside", ["notes.txt", "collections/semimetric/notes.txt"])
def test_a_folder_with_other_files_is_never_touched(tmp_path: Path, inside: str, replace: bool) -> None:
    kept = tmp_path / "mine.db" / inside
    kept.parent.mkdir(parents=True)
    kept.write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    for attempt in (
        lambda: build_index(tmp_path / "mine.db", torch.eye(3), replace=replace),
        lambda: open_index(tmp_path / "mine.db", 3),
        lambda: MilvusIndex(tmp_path / "mine.db", "semimetric", 3),
    ):
        with pytest.raises(InputError, match=r"mine\.db' holds files that are not of Milvus Lite\. Name another"):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before
    assert kept.read_text() == "precious"


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "run.db").mkdir()
    build_index(tmp_path / "run.db", torch.eye(3), collection="mine")
    with open_index(tmp_path / "run.db", 3, collection="mine") as index:
        assert len(index) == 3
    with open_index(tmp_path / "run.db", 3) as other, pytest.raises(InputError, match="is no collection"):
        len(other)


def test_refusals(tmp_path: Path, points: torch.Tensor) -> None:
    (tmp_path / "old.db").write_bytes(b"SQLite format 3")
    with pytest.raises(InputError, match="is a file, and Milvus Lite needs a folder"):
        MilvusIndex(tmp_path / "old.db", "run", 12)
    with pytest.raises(InputError, match="name must be letters, digits and underscores"):
        MilvusIndex(tmp_path / "run.db", "a run", 12)
    with MilvusIndex(tmp_path / "run.db", "run", 12) as index:
        with pytest.raises(InputError, match="embeddings must have 12 columns"):
            index.load(points[:, :3])
        with pytest.raises(InputError, match="names must have one entry for each of the 600 embeddings, got 1"):
            index.load(points, ["one"])
        with pytest.raises(InputError, match="names must have at most 4096 bytes each; number 1 has more"):
            index.load(points[:2], ["short", "ä" * 2049])
        with pytest.raises(InputError, match="batch_size must be a whole number of at least 1"):
            index.load(points, batch_size=0)
        with pytest.raises(InputError, match="k must be at most 16384 in Milvus"):
            index.search(points, 20_000)
    assert not list((tmp_path / "run.db" / "collections").iterdir())


def test_a_server_that_is_not_there_is_told_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"Milvus at http://127.0.0.1:9 could not connect: .*MILVUS_TOKEN") as refused:
        MilvusIndex("http://127.0.0.1:9", "run", 12, token="a:secret")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("package", ["pymilvus", "milvus_lite.server_manager"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"needs the package p?y?milvus.*pip install 'semimetric\[milvus\]'"):
        MilvusIndex(tmp_path / "run.db", "run", 12)


def test_prints_nothing(tmp_path: Path) -> None:
    """Also where Milvus Lite logs a traceback, as for a folder that another has open."""
    code = """
import sys, torch
from semimetric.core.errors import RunError
from semimetric.search import MilvusIndex
with MilvusIndex(sys.argv[1], "run", 3) as index:
    index.load(torch.eye(3))
    index.search(torch.eye(3), 2)
    try:
        MilvusIndex(sys.argv[1], "run", 3)
    except RunError:
        pass
"""
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "run.db")]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (told.stdout, told.stderr) == ("", "")
