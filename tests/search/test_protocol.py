"""What every index does, whatever its backend."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command import semimetric

from semimetric.core.errors import InputError, RunError
from semimetric.search import ExactIndex, Index, build_index, check_place, open_index, search_run_index
from semimetric.search.index import INDEXES

NEEDED = {"exact": [], "faiss": ["faiss"], "milvus": ["pymilvus", "milvus_lite"]}
PLACES = {"exact": "run.npy", "faiss": "run.faiss", "milvus": "run.db"}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    for package in NEEDED[request.param]:
        pytest.importorskip(package, reason="needs semimetric[faiss,milvus]")
    return str(tmp_path / PLACES[request.param])


@pytest.fixture
def points(make_clusters) -> torch.Tensor:
    return make_clusters(0, 300, 6, 5)[0]


def first(place: str, query: torch.Tensor) -> int:
    """Row of the nearest vector."""
    with open_index(place, len(query)) as index:
        return int(index.search(query[None], 1).rows)


def test_every_backend_of_the_package_is_tested() -> None:
    assert list(INDEXES) == list(PLACES)


def test_a_built_index_finds_what_exact_search_does(place: str, points: torch.Tensor) -> None:
    build_index(place, points, [f"{row}.jpg" for row in range(300)])
    queries = points[:40] + 0.01
    wanted = ExactIndex(points).search(queries, 10)
    for _ in range(2):
        with open_index(place, 6) as index:
            hits = index.search(queries, 10)
            assert (len(index), index.width) == (300, 6)
        assert torch.equal(hits.rows, wanted.rows)
        assert (hits.distances - wanted.distances).abs().max() < 1e-4
        assert hits.distances.dtype == torch.float64


def test_more_hits_than_vectors_are_all_vectors(place: str, points: torch.Tensor) -> None:
    build_index(place, points[:20])
    with open_index(place, 6) as index:
        hits = index.search(points[:3], 1000)
    assert hits.rows.sort(dim=1).values.equal(torch.arange(20).expand(3, -1))
    assert (hits.distances.diff(dim=1) >= 0).all()


def test_another_width_is_refused(place: str, points: torch.Tensor) -> None:
    build_index(place, points)
    with pytest.raises(InputError, match=r"width must be 6, the width of .*, got 5"), open_index(place, 5) as index:
        len(index)
    with open_index(place, 6) as index, pytest.raises(InputError, match=r"queries must have 6 columns.*got 5"):
        index.search(points[:, :5], 1)


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (torch.zeros(0, 6), "embeddings must be a matrix with at least 1 row"),
        (torch.zeros(6), "embeddings must be a matrix"),
        (torch.full((2, 6), torch.nan), "embeddings has NaN"),
    ],
)
def test_embeddings_without_rows_or_numbers_are_refused(place: str, embeddings: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_index(place, embeddings)
    assert not Path(place).exists()


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_a_number_of_hits_below_one_is_refused(place: str, points: torch.Tensor, k: int) -> None:
    build_index(place, points)
    with open_index(place, 6) as index, pytest.raises(InputError, match="k must be a whole number of at least 1"):
        index.search(points, k)


def test_an_index_is_replaced_only_on_request(place: str, points: torch.Tensor) -> None:
    build_index(place, points)
    with pytest.raises(InputError, match="replace=True"):
        build_index(place, points.flip(0))
    assert first(place, points[7]) == 7
    build_index(place, points.flip(0)[:200], replace=True)
    assert first(place, points[299]) == 0
    with open_index(place, 6) as index:
        assert len(index) == 200


def test_opening_what_does_not_exist_leaves_nothing_behind(place: str) -> None:
    with pytest.raises(InputError, match=r"^place '.*' is not there\. Make it with: semimetric index"):
        open_index(place, 6)
    assert not Path(place).exists()
    with pytest.raises(InputError, match="there is no folder"):
        build_index(Path(place).parent / "none" / Path(place).name, torch.eye(3))


def test_an_index_is_closed_with_its_context(place: str, points: torch.Tensor) -> None:
    build_index(place, points[:20])
    with open_index(place, 6) as outer:
        index: Index = outer
    index.close()
    assert first(place, points[3]) == 3


def test_the_index_of_a_run_is_searched_like_the_run(place: str, points: torch.Tensor) -> None:
    build_index(place, points)
    wanted = search_run_index(None, points, points[:9], 4, "semimetric")
    assert torch.equal(search_run_index(place, points, points[:9], 4, "semimetric").rows, wanted.rows)
    assert wanted.rows[:, 0].tolist() == list(range(9))
    with pytest.raises(RunError, match=r"300 examples and the run 299: it is of another.* index RUN --to PLACE"):
        search_run_index(place, points[1:], points, 4, "semimetric")
    with pytest.raises(RunError, match="is of another run"):
        search_run_index(place, points.roll(1, 0), points, 4, "semimetric")


def test_single_flipped_bits_of_an_index_never_change_an_answer_in_silence(place: str, points: torch.Tensor) -> None:
    build_index(place, points)
    wanted = search_run_index(None, points, points, 5, "semimetric")
    files = [path for path in (Path(place), *Path(place).rglob("*")) if path.is_file() and path.stat().st_size]
    draw, refused = random.Random(0), 0
    for number in range(84):
        damaged = files[number % len(files)]
        whole = damaged.read_bytes()
        position, bit = draw.randrange(len(whole)), draw.randrange(8)
        damaged.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
        try:
            assert torch.equal(search_run_index(place, points, points, 5, "semimetric").rows, wanted.rows)
        except RunError:
            refused += 1
        damaged.write_bytes(whole)
    assert refused > 80
    assert torch.equal(search_run_index(place, points, points, 5, "semimetric").rows, wanted.rows)


@pytest.mark.parametrize("place", ["run", "run.other", "", "ftp://host/run.faiss", "http//host"])
def test_an_unknown_place_is_answered_with_those_that_are_known(place: str) -> None:
    known = "; ".join(backend.places for backend in INDEXES.values())
    with pytest.raises(InputError) as refused:
        check_place(place, "--to")
    assert str(refused.value) == f"--to must be one of: {known}. Got {place!r}."


def test_the_help_names_every_place() -> None:
    shown = semimetric("index", "--help").out
    endings = [ending for backend in INDEXES.values() for ending in backend.suffixes]
    assert all(ending in shown for ending in endings)


def test_a_path_of_a_url_does_not_count() -> None:
    assert check_place("https://host/run.faiss").name == "milvus"


@pytest.mark.parametrize("content", [b"", b"no array", "pickle", "vector"])
def test_an_array_that_is_no_index_is_refused(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "run.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, np.array([{}] if content == "pickle" else [1.0]), allow_pickle=True)
    with pytest.raises(RunError, match=r"run\.npy cannot be read: .*Build the index again"):
        open_index(path, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_an_exact_index_keeps_every_digit(tmp_path: Path, points: torch.Tensor, dtype: torch.dtype) -> None:
    build_index(tmp_path / "run.npy", points.to(dtype))
    hits = open_index(tmp_path / "run.npy", 6).search(points, 5)
    wanted = ExactIndex(points.to(dtype)).search(points, 5)
    assert torch.equal(hits.rows, wanted.rows)
    assert torch.equal(hits.distances, wanted.distances)
