from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.graph import approximate, graph_neighbors, nearest_neighbors


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which 1,500 rows are many."""
    monkeypatch.setattr(approximate, "EXACT_ROWS", 1000)
    monkeypatch.setattr(approximate, "LIST_ROWS", 40)
    monkeypatch.setattr(approximate, "LEAST_PROBES", 2)


def recall(points: Tensor, found: Tensor) -> float:
    exact = nearest_neighbors(points, found.shape[1])
    return float((found[:, :, None] == exact[:, None, :]).any(2).double().mean())


def test_few_rows_have_exact_neighbours(make_clusters) -> None:
    points, _ = make_clusters(0, 1000, 8, 10)
    assert torch.equal(graph_neighbors(points, 5), nearest_neighbors(points, 5))


@pytest.mark.parametrize("unit", [1.0, 1e-150, 1e150])
def test_nearly_all_neighbours_of_many_rows_are_found_and_the_log_says_how_many(
    make_clusters, unit: float, caplog: pytest.LogCaptureFixture
) -> None:
    points, _ = make_clusters(1, 1500, 16, 30, 0.2)
    points = points.double() * unit
    with caplog.at_level(logging.INFO, logger="semimetric"):
        found = graph_neighbors(points, 10)
    assert recall(points, found) >= 0.97
    assert "Approximate graph of 1500 examples" in caplog.text
    said = float(caplog.text.split("recall ")[1].split()[0])
    assert said >= approximate.RECALL
    own = torch.arange(1500)[:, None]
    assert (found != own).all()
    assert (found.sort(dim=1).values.diff(dim=1) > 0).all()  # nobody twice
    distances = (points[found] - points[:, None]).div(unit).square().sum(2)
    assert (distances.diff(dim=1) >= -1e-5).all()


def test_more_lists_are_probed_until_the_recall_suffices(make_clusters, caplog: pytest.LogCaptureFixture) -> None:
    points, _ = make_clusters(2, 1500, 4, 2, 1.0)
    with caplog.at_level(logging.INFO, logger="semimetric"):
        found = graph_neighbors(points, 10)
    assert recall(points, found) >= 0.97
    probes = int(caplog.text.split("examples: ")[1].split()[0])
    assert probes > 2


def test_points_without_structure_have_exact_neighbours(caplog: pytest.LogCaptureFixture) -> None:
    points = torch.randn(1500, 64, generator=torch.Generator().manual_seed(0))
    with caplog.at_level(logging.INFO, logger="semimetric"):
        assert torch.equal(graph_neighbors(points, 10), nearest_neighbors(points, 10))
    assert "Exact graph" in caplog.text


@pytest.mark.parametrize("factor", [1e5, 1e12])
def test_outliers_cost_no_neighbours(make_clusters, factor: float, caplog: pytest.LogCaptureFixture) -> None:
    points, _ = make_clusters(1, 1500, 16, 30, 0.2)
    points = torch.where(torch.arange(1500)[:, None] < 8, factor, 1.0) * points.double()
    with caplog.at_level(logging.INFO, logger="semimetric"):
        assert recall(points, graph_neighbors(points, 10)) >= 0.97
    assert "Approximate graph" in caplog.text


def test_groups_that_are_too_far_apart_for_float32_have_exact_neighbours(
    make_clusters, caplog: pytest.LogCaptureFixture
) -> None:
    points, classes = make_clusters(1, 1500, 16, 30, 0.2)
    points = points.double() + 1e6 * (classes[:, None] % 3)
    with caplog.at_level(logging.INFO, logger="semimetric"):
        assert torch.equal(graph_neighbors(points, 10), nearest_neighbors(points, 10))
    assert "float32 does not tell near ones apart" in caplog.text


def test_lists_shorter_than_k_are_completed() -> None:
    """Far pairs and one crowd: the lists of a pair have fewer than k members."""
    generator = torch.Generator().manual_seed(3)
    pairs = 1e3 * torch.randn(30, 8, generator=generator).repeat_interleave(2, 0)
    points = torch.cat(
        [torch.randn(1440, 8, generator=generator), pairs + 0.1 * torch.randn(60, 8, generator=generator)]
    )
    found = graph_neighbors(points, 10)
    assert (found != torch.arange(1500)[:, None]).all()
    assert (found.sort(dim=1).values.diff(dim=1) > 0).all()


def test_bad_k_is_named(make_clusters) -> None:
    with pytest.raises(InputError, match="below the number of examples"):
        graph_neighbors(make_clusters(0, 1200, 4, 3)[0], 1200)
