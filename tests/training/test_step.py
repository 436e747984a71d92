from __future__ import annotations

import pytest
import torch
from torch import nn

from semimetric.methods import build_method
from semimetric.training.step import TrainingStep


def step_of(inputs: torch.Tensor, **values) -> TrainingStep:
    """A step of consensus on these inputs, whose labels are the row number modulo 3."""
    encoder = nn.Linear(inputs.shape[1], 5)
    method = build_method("consensus", **values)
    method.prepare(inputs, torch.arange(len(inputs)) % 3, 5, torch.Generator().manual_seed(0))
    return TrainingStep(encoder, method, torch.optim.SGD(encoder.parameters(), lr=0.1), inputs, update_metric=False)


def test_views_of_several_batches_are_those_of_each() -> None:
    inputs = 100 + torch.arange(120.0).reshape(30, 4)
    batches = [torch.arange(6), torch.arange(12, 18), torch.arange(29, 23, -1)]
    plain = step_of(inputs, augmentation="none").views(batches)
    assert torch.equal(plain, torch.stack([inputs[rows].repeat(2, 1) for rows in batches]))
    torch.manual_seed(0)
    views = step_of(inputs).views(batches) - plain
    drops, noise = views.abs() > 8, views.abs()  # the columns' deviation is 35, a weak view's noise 1.8
    assert not bool(drops[:, :6].any())  # weak views come first and only add a little noise
    assert bool(drops[:, 6:].flatten(1).any(1).all())
    assert float(noise[:, :6].mean()) == pytest.approx(0.05 * float(inputs[:, 0].std()) * 0.8, rel=0.3)
    assert bool((noise > 0).all())


def test_on_a_cpu_views_are_made_batch_by_batch() -> None:
    assert step_of(torch.randn(30, 4)).at_once(8) == 1
