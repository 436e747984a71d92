from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
import torch
from helpers.search import recall

from semimetric.core.errors import InputError, RunError
from semimetric.core.extras import import_extra
from semimetric.search import ExactIndex, FaissIndex, HnswSettings

faiss = pytest.importorskip("faiss", reason="needs semimetric[faiss]")


@pytest.fixture
def one_thread():
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.mark.parametrize("queries", [1, 100])
def test_flat_equals_exact(make_clusters, queries: int) -> None:
    stored, _ = make_clusters(0, 3000, 24, 20)
    wanted = ExactIndex(stored).search(stored[:queries], 10)
    index = FaissIndex.build(stored, "flat")
    hits = index.search(stored[:queries], 10)
    assert len(index) == 3000
    assert index.kind == "flat"
    assert torch.equal(hits.rows, wanted.rows)
    assert torch.equal(hits.distances, wanted.distances)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_many_copies_and_more_asked_than_stored(kind: str) -> None:
    stored = torch.cat([torch.zeros(300, 4), torch.eye(4)])
    hits = FaissIndex.build(stored, kind).search(torch.zeros(2, 4), 1000)
    assert hits.rows.sort(dim=1).values.equal(torch.arange(304).expand(2, -1))
    assert hits.rows[:, :300].equal(torch.arange(300).expand(2, -1))
    assert hits.distances[:, 300:].equal(torch.ones(2, 4, dtype=torch.float64))


def test_hnsw_finds_nearly_all(make_clusters, one_thread: None) -> None:
    points, _ = make_clusters(1, 5200, 32, 20)
    stored, queries = points[:5000], points[5000:]
    index = FaissIndex.build(stored, "hnsw")
    assert index.kind == "hnsw"
    assert recall(index.search(queries, 10), ExactIndex(stored).search(queries, 10)) >= 0.95


def test_settings_reach_the_graph(make_clusters, one_thread: None) -> None:
    points, _ = make_clusters(1, 5200, 32, 20)
    stored, queries = points[:5000], points[5000:]
    wanted = ExactIndex(stored).search(queries, 10)
    poor = FaissIndex.build(stored, "hnsw", HnswSettings(m=4, ef_construction=8, ef_search=1))
    assert recall(poor.search(queries, 10), wanted) < 0.9
    more = FaissIndex.build(stored, "hnsw", HnswSettings(m=4, ef_construction=8, ef_search=1000))
    assert recall(more.search(queries, 10), wanted) > recall(poor.search(queries, 10), wanted)


@pytest.mark.slow
def test_hnsw_finds_nearly_all_of_100_000(make_clusters, one_thread: None) -> None:
    """With one thread the graph takes from 17 s to 40 s, the more the less the points cluster."""
    points, _ = make_clusters(0, 101_000, 64, 100, 0.1)
    stored, queries = points[:100_000], points[100_000:]
    assert recall(FaissIndex.build(stored, "hnsw").search(queries, 10), ExactIndex(stored).search(queries, 10)) >= 0.95


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_file_keeps_the_index(tmp_path: Path, make_clusters, kind: str) -> None:
    stored, _ = make_clusters(0, 500, 8, 5)
    index = FaissIndex.build(stored, kind, HnswSettings(ef_search=17))
    index.save(tmp_path / "kept.faiss")
    again = FaissIndex.load(tmp_path / "kept.faiss")
    assert (len(again), again.kind) == (500, kind)
    wanted, hits = index.search(stored[:30], 5), again.search(stored[:30], 5)
    assert torch.equal(hits.rows, wanted.rows)
    assert torch.equal(hits.distances, wanted.distances)
    assert faiss.read_index(str(tmp_path / "kept.faiss")).ntotal == 500  # FAISS reads it, too
    assert kind == "flat" or again._index.hnsw.efSearch == 17


def test_saving_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "kept.faiss"
    FaissIndex.build(torch.eye(3)).save(path)
    with pytest.raises(InputError, match="exists"):
        FaissIndex.build(torch.eye(5)).save(path)
    FaissIndex.build(torch.eye(5)).save(path, replace=True)
    assert len(FaissIndex.load(path)) == 5
    assert [found.name for found in tmp_path.iterdir()] == ["kept.faiss"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize("damage", ["cut short", "flipped bit", "of FAISS alone", "foreign", "empty"])
def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path, make_clusters, damage: str) -> None:
    path = tmp_path / "kept.faiss"
    index = FaissIndex.build(make_clusters(0, 200, 8, 5)[0], "hnsw")
    index.save(path)
    content = bytearray(path.read_bytes())
    if damage == "cut short":
        content = content[: len(content) // 2]
    elif damage == "flipped bit":
        content[len(content) // 2] ^= 4
    elif damage == "of FAISS alone":
        content = bytearray(faiss.serialize_index(index._index).tobytes())
    else:
        content = bytearray(b"no index at all" * 20 if damage == "foreign" else b"")
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"kept\.faiss is (damaged|not an index that semimetric saved).*Build the index"):
        FaissIndex.load(path)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="kind must be one of flat, hnsw, got 'ivf'"):
        FaissIndex.build(torch.eye(3), "ivf")
    with pytest.raises(InputError, match="embeddings has NaN"):
        FaissIndex.build(torch.tensor([[float("nan")]]))
    with pytest.raises(InputError, match="embeddings in single precision has NaN or infinite"):
        FaissIndex.build(torch.tensor([[1e300]], dtype=torch.float64))
    with pytest.raises(InputError, match="queries must have 3 columns"):
        FaissIndex.build(torch.eye(3)).search(torch.eye(2), 1)
    with pytest.raises(InputError, match="does not exist"):
        FaissIndex.load(tmp_path / "none.faiss")
    with pytest.raises(InputError, match="there is no folder"):
        FaissIndex.build(torch.eye(3)).save(tmp_path / "none" / "kept.faiss")
    with pytest.raises(InputError, match="m must be a whole number of at least 2, got 1"):
        HnswSettings(m=1)
    with pytest.raises(InputError, match="ef_search must be a whole number of at least 1, got 0"):
        HnswSettings(ef_search=0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"needs the package faiss.*pip install 'semimetric\[faiss\]'"):
        FaissIndex.build(torch.eye(3))
    (tmp_path / "unfitting.py").write_text("raise RuntimeError('built for another numpy')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"built for another numpy.*semimetric\[milvus\]"):
        import_extra("unfitting", "milvus", "this search")
