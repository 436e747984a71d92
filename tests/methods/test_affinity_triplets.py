from __future__ import annotations

import pytest
import torch

from semimetric.core.errors import InputError
from semimetric.graph import graph_modes, nearest_neighbors, neighbor_density
from semimetric.methods import build_method
from semimetric.methods.affinity_triplets import AffinityTripletsSettings


def test_every_node_is_an_anchor_of_half_its_neighbours(make_clusters) -> None:
    points, classes = make_clusters(0, 50, 8, 3)
    labels = torch.where(torch.arange(50) < 9, classes, -1)
    triplets = build_method("affinity-triplets", k=7).constraints(points, labels)
    assert len(triplets) == 50 * 3
    assert torch.equal(triplets.index[:, 0], torch.arange(50).repeat_interleave(3))


def test_modes_as_anchors(make_clusters) -> None:
    points, classes = make_clusters(0, 50, 8, 3)
    labels = torch.where(torch.arange(50) < 9, classes, -1)
    triplets = build_method("affinity-triplets", k=6, anchors="modes").constraints(points, labels)
    neighbors = nearest_neighbors(points, 6)
    modes = graph_modes(neighbors, neighbor_density(points, neighbors))
    assert 0 < len(modes) < 25
    assert torch.equal(triplets.index[:, 0].unique(), modes)


def test_without_orthogonality_the_metric_leaves_the_manifold(make_clusters) -> None:
    points, classes = make_clusters(0, 50, 8, 3)
    labels = torch.where(torch.arange(50) < 9, classes, -1)
    for orthogonal in (True, False):
        method = build_method("affinity-triplets", k=6, components=4, orthogonal=orthogonal)
        metric = method.initial_metric(8, torch.Generator().manual_seed(0))
        updated = method.update_metric(metric, points, method.constraints(points, labels))
        assert updated.is_orthonormal(1e-8) == orthogonal


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 1}, "k must be at least 2"),
        ({"gamma": 1.0}, "gamma must lie strictly between 0 and 1"),
        ({"alpha": 90.0}, "alpha must lie strictly between 0 and 90"),
        ({"components": 0}, "components and cg_iterations must be at least 1"),
        ({"anchors": "some"}, "anchors must be one of all, modes"),
        ({"reduction": "max"}, "reduction must be one of sum, mean"),
    ],
)
def test_bad_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AffinityTripletsSettings(**changes)
