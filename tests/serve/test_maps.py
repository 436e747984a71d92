from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from semimetric.core.errors import InputError
from semimetric.serve.maps import full_map, sample_map, stratified_sample


def test_a_sample_has_every_group_in_its_share() -> None:
    groups = torch.cat([torch.zeros(900), torch.ones(95), torch.full((5,), 2)]).long()
    rows = stratified_sample(groups, 100)
    counts = torch.bincount(groups[rows])
    assert len(rows) <= 100
    assert counts[2] >= 1
    assert 80 <= counts[0] <= 95
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert rows.tolist() == stratified_sample(groups, 100).tolist()
    assert rows.tolist() != stratified_sample(groups, 100, seed=1).tolist()


def test_a_small_set_is_taken_whole() -> None:
    assert stratified_sample(torch.zeros(7).long(), 100).tolist() == list(range(7))


def test_the_map_keeps_classes_together(make_clusters) -> None:
    points, classes = make_clusters(0, 200, 16, 2, spread=0.05)
    found = sample_map(points, classes, 60)
    assert found.made == f"t-SNE of {len(found.rows)} of 200 examples, drawn by predicted class"
    distances = torch.cdist(found.points, found.points).fill_diagonal_(9)
    assert (classes[found.rows][distances.argmin(1)] == classes[found.rows]).all()
    everyone = full_map(points, classes, 60)
    assert everyone.rows.tolist() == list(range(200))
    torch.testing.assert_close(everyone.points[found.rows], found.points)
    apart = torch.cdist(everyone.points, everyone.points).fill_diagonal_(9)
    assert (classes[apart.argmin(1)] == classes).float().mean() > 0.98
    assert everyone.points.abs().max() <= 1


def test_maps_of_very_few_examples() -> None:
    assert sample_map(torch.eye(2), torch.zeros(2).long()).points.shape == (2, 2)
    assert sample_map(torch.zeros(6, 3) + 1, torch.zeros(6).long()).points.isfinite().all()
    assert sample_map(torch.arange(8.0)[:, None], torch.zeros(8).long()).points.isfinite().all()


def test_umap_places_where_it_is_installed_and_is_named_where_not() -> None:
    points, classes = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    points[classes == 1] += 8
    if find_spec("umap") is None:
        assert sample_map(points, classes, way="auto").made.startswith("t-SNE of all 60")
        with pytest.raises(InputError, match=r"semimetric\[umap\]"):
            sample_map(points, classes, way="umap")
        return
    found = sample_map(points, classes, 40, way="auto")
    assert found.made == "UMAP of 40 of 60 examples, drawn by predicted class"
    first, second = (found.points[classes[found.rows] == number] for number in (0, 1))
    assert torch.cdist(first, second).min() > torch.cdist(first, first.mean(0, keepdim=True)).max()
