"""The contrastive losses of ``consensus`` on a projection of the features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from semimetric import build_method
from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.losses import contrastive_loss
from semimetric.methods.consensus import Consensus
from semimetric.metric import Metric

COUNT, WIDTH, COLUMNS = 12, 6, 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prepared(labels: Tensor, **settings: Any) -> Consensus:
    method = build_method("consensus", k=3, augmentation="none", **settings)
    assert isinstance(method, Consensus)
    method.on_fit_begin(torch.randn(COUNT, WIDTH, generator=seeded()), labels, WIDTH, seeded(1))
    return method


@pytest.fixture
def labels() -> Tensor:
    return torch.where(torch.arange(COUNT) < 6, torch.arange(COUNT) % 2, -1)


def test_contrasts_act_on_the_projection_and_the_head_on_the_features(labels: Tensor) -> None:
    method = prepared(labels, projection=COLUMNS, consistency=0.0, contrast=1.3, instance=0.4)
    batch = method.constraints(unit_features(torch.randn(COUNT, WIDTH, generator=seeded(2))), labels)
    views = unit_features(torch.randn(2 * COUNT, WIDTH, generator=seeded(3))).requires_grad_()
    first, second = method.projection[0], method.projection[2]
    projected = (16 * views @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    assert projected.shape == (2 * COUNT, COLUMNS)
    weights = batch.weights.float().repeat(2)
    expected = 1.3 * contrastive_loss(projected, batch.targets.repeat(2), weights, 0.1)
    expected = expected + 0.4 * contrastive_loss(projected, torch.arange(COUNT).repeat(2), None, 0.1)
    expected = expected + cross_entropy(torch.zeros(6, 2), labels[:6])  # the head starts at zero
    loss = method.loss(Metric.random_orthonormal(WIDTH, 3, seeded(4)), views, batch)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    loss.backward()
    assert all(bool((parameter.grad != 0).any()) for parameter in method.projection.parameters())
    assert bool((views.grad != 0).any())


def test_a_projection_is_drawn_from_the_generator_alone(labels: Tensor) -> None:
    torch.manual_seed(5)
    one = prepared(labels, projection=COLUMNS).projection
    torch.manual_seed(6)
    other = prepared(labels, projection=COLUMNS).projection
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    assert float(one[0].weight.detach().std()) == pytest.approx((2 / WIDTH) ** 0.5, rel=0.4)


def test_a_fit_that_starts_from_another_takes_its_projection_over(labels: Tensor) -> None:
    before, after = prepared(labels, projection=COLUMNS), prepared(labels, projection=COLUMNS)
    with torch.no_grad():
        for tensor in before.projection.state_dict().values():
            tensor.add_(1.0)
    after.start_from(before.state_dict(), torch.arange(2))
    for name, tensor in before.projection.state_dict().items():
        assert torch.equal(after.projection.state_dict()[name], tensor)
    wider = prepared(labels, projection=COLUMNS + 1)
    wider.start_from(before.state_dict(), torch.arange(2))  # what does not fit stays as it was drawn
    assert wider.projection[2].weight.shape == (COLUMNS + 1, WIDTH)


def test_without_one_there_are_no_weights_for_it(labels: Tensor) -> None:
    assert not any(name.startswith("projection") for name in prepared(labels).state_dict())
    with pytest.raises(InputError, match="projection must be a finite number of at least 0, got -1"):
        build_method("consensus", projection=-1)
