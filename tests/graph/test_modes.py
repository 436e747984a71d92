from __future__ import annotations

import pytest
import torch

from semimetric.core.errors import InputError
from semimetric.graph import graph_modes, nearest_neighbors, neighbor_density


def test_one_mode_per_well_separated_cluster() -> None:
    generator = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0.0, 50.0, 100.0]).repeat_interleave(40)[:, None]
    points = torch.randn(120, 2, generator=generator) + offsets
    neighbors = nearest_neighbors(points, 39)
    modes = graph_modes(neighbors, neighbor_density(points, neighbors))
    assert sorted((modes // 40).tolist()) == [0, 1, 2]


def test_a_plateau_keeps_its_lowest_number() -> None:
    neighbors = torch.tensor([[1, 2], [0, 2], [0, 1]])
    assert graph_modes(neighbors, torch.ones(3)).tolist() == [0]


def test_duplicates_have_finite_density() -> None:
    points = torch.zeros(3, 2)
    assert torch.isfinite(neighbor_density(points, torch.tensor([[1, 2], [0, 2], [0, 1]]))).all()


def test_density_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InputError, match=r"one entry per node \(2\)"):
        graph_modes(torch.tensor([[1], [0]]), torch.ones(3))
