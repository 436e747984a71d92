from __future__ import annotations

import pytest
import torch
from sklearn.cluster import KMeans

from semimetric.core.errors import InputError
from semimetric.graph import clustering
from semimetric.graph.clustering import kmeans


def test_reaches_the_inertia_of_scikit_learn(make_clusters) -> None:
    points, _ = make_clusters(0, 600, 8, 10)
    ours = kmeans(points.double(), 10, seed=0)
    theirs = KMeans(10, n_init=10, random_state=0).fit(points.double().numpy())
    assert ours.inertia <= theirs.inertia_ * 1.01


def test_recovers_separated_clusters_and_reports_its_own_inertia(make_clusters) -> None:
    points, labels = make_clusters(1, 200, 16, 5, 0.02)
    found = kmeans(points, 5)
    for cluster in range(5):
        assert len(labels[found.assignment == cluster].unique()) == 1
    expected = (points - found.centres[found.assignment]).square().sum()
    assert found.inertia == pytest.approx(float(expected), rel=1e-3)


def test_same_seed_same_clusters(make_clusters) -> None:
    points, _ = make_clusters(2, 300, 6, 7)
    assert torch.equal(kmeans(points, 7, seed=3).assignment, kmeans(points, 7, seed=3).assignment)


def test_more_clusters_than_distinct_points_still_ends() -> None:
    points = torch.tensor([[0.0, 0.0]] * 5 + [[1.0, 1.0]] * 5)
    found = kmeans(points, 6)
    assert found.inertia == 0.0
    assert torch.isfinite(found.centres).all()


def test_blocks_bound_memory_and_do_not_change_the_clusters(
    make_clusters, largest_tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, _ = make_clusters(3, 400, 6, 5)
    whole = kmeans(points.double(), 100)
    monkeypatch.setattr(clustering, "BLOCK_ENTRIES", 5000)
    monkeypatch.setattr(clustering, "ASSIGNED_ENTRIES", 5000)
    with largest_tensor() as largest:
        blocks = kmeans(points.double(), 100)
    assert largest.entries <= 10 * 100 * 6 * 2  # the centres of all restarts, not a distance for every point
    assert blocks.inertia == pytest.approx(whole.inertia, rel=0.05)


@pytest.mark.parametrize("count", [0, 11])
def test_impossible_number_of_clusters_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="n_clusters must be between 1 and the number of points"):
        kmeans(torch.eye(10), count)


def test_restarts_that_stop_early_and_starts_that_see_a_part_end_where_all_would(make_clusters) -> None:
    points, _ = make_clusters(4, 5000, 8, 40, 0.5)
    for clusters in (5, 40, 200):
        theirs = KMeans(clusters, n_init=3, random_state=0).fit(points.numpy())
        assert kmeans(points, clusters).inertia <= theirs.inertia_ * 1.01
