from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from semimetric.encoders import features_of
from semimetric.methods import build_method
from semimetric.training.step import MOST_BATCHES, MOST_VIEWS, VIEW_BYTES, TrainingStep


def step_of(inputs: torch.Tensor, **values) -> TrainingStep:
    """A step of consensus on these inputs, whose labels are the row number modulo 3."""
    encoder = nn.Linear(inputs.shape[1], 5)
    method = build_method("consensus", **values)
    method.on_fit_begin(inputs, torch.arange(len(inputs)) % 3, 5, torch.Generator().manual_seed(0))
    return TrainingStep(encoder, method, torch.optim.SGD(encoder.parameters(), lr=0.1), inputs, update_metric=False)


def test_views_of_several_batches_are_those_of_each() -> None:
    inputs = 100 + torch.arange(120.0).reshape(30, 4)
    batches = [torch.arange(6), torch.arange(12, 18), torch.arange(29, 23, -1)]
    plain = step_of(inputs, augmentation="none").views(inputs[torch.cat(batches)], 3)
    assert torch.equal(plain, torch.stack([inputs[rows].repeat(2, 1) for rows in batches]))
    torch.manual_seed(0)
    views = step_of(inputs).views(inputs[torch.cat(batches)], 3) - plain
    drops, noise = views.abs() > 8, views.abs()  # the columns' deviation is 35, a weak view's noise 1.8
    assert not bool(drops[:, :6].any())  # weak views come first and only add a little noise
    assert bool(drops[:, 6:].flatten(1).any(1).all())
    assert float(noise[:, :6].mean()) == pytest.approx(0.05 * float(inputs[:, 0].std()) * 0.8, rel=0.3)
    assert bool((noise > 0).all())


def test_a_stopped_gradient_changes_no_feature_and_passes_weak_views_by() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, views = torch.randn(30, 4, generator=generator), torch.randn(32, 4, generator=generator)
    step, weights = step_of(inputs, stop_gradient=True), torch.randn(32, 5, generator=generator)
    found = step._features(views, 16)
    plain = features_of(step.encoder, views)
    assert torch.allclose(found, plain, atol=1e-6)
    trained = torch.tensor([row < 2 or row >= 16 for row in range(32)])  # an eighth is drawn for its labels
    of_step = torch.autograd.grad((found * weights).sum(), step.encoder.weight)
    of_those = torch.autograd.grad((plain * weights)[trained].sum(), step.encoder.weight)
    assert torch.allclose(*of_step, *of_those, atol=1e-6)


def test_gradients_reach_all_views_otherwise() -> None:
    views = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    step_of(views.detach())._features(views, 16)[:, 0].sum().backward()
    assert bool((views.grad.abs().sum(1) > 0).all())


def test_on_a_cpu_views_are_made_batch_by_batch() -> None:
    assert step_of(torch.randn(30, 4)).at_once(8) == 1


class OnGpu(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def step_on_gpu(numbers: int, dtype: torch.dtype = torch.float32) -> TrainingStep:
    """A step on examples of so many numbers each, which take no memory."""
    step = step_of(torch.randn(30, 4))
    step.inputs = torch.zeros(1, dtype=dtype).expand(30, 2, numbers // 2).as_subclass(OnGpu)
    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 16, 64, 65, 1000])
def test_on_a_gpu_views_are_made_for_as_many_batches_as_fit_into_little_memory(size: int, dtype: torch.dtype) -> None:
    bytes_of_an_example = (1 << 20) * dtype.itemsize
    count = step_on_gpu(1 << 20, dtype).at_once(size)
    assert 1 <= count <= MOST_BATCHES
    assert count == 1 or MOST_VIEWS * count * size * bytes_of_an_example <= VIEW_BYTES
    assert count == MOST_BATCHES or MOST_VIEWS * (count + 1) * size * bytes_of_an_example > VIEW_BYTES


def test_on_a_gpu_so_many_batches_are_prepared_at_once() -> None:
    step = step_on_gpu(1 << 20)  # of 4 MiB, 64 of which fit
    assert [step.at_once(size) for size in (1, 4, 5, 8, 16, 33, 64, 65)] == [16, 16, 12, 8, 4, 1, 1, 1]


def test_what_is_no_view_is_not_prepared_for_several_batches() -> None:
    step = step_on_gpu(16)
    assert step.at_once(8) == MOST_BATCHES
    step.method.needs = dataclasses.replace(step.method.needs, views=False)
    assert step.at_once(8) == 1
