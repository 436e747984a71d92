import math

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.losses import angular_loss, angular_margins
from semimetric.metric import random_orthonormal


def make(seed, n=12, d=6, l=3, t=9, dtype=torch.float64):  # noqa: E741
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, d, generator=generator, dtype=dtype)
    triplets = torch.randint(n, (t, 3), generator=generator)
    return embeddings, triplets, random_orthonormal(d, l, generator)


def naive_losses(embeddings, triplets, factor, alpha):
    losses = []
    for i, j, k in triplets.tolist():
        side = height = 0.0
        for column in range(factor.shape[1]):
            a = b = 0.0
            for row in range(factor.shape[0]):
                z, p, q = (float(embeddings[index, row]) for index in (i, j, k))
                a += float(factor[row, column]) * (z - p)
                b += float(factor[row, column]) * (q - (z + p) / 2)
            side += a * a
            height += b * b
        margin = side - 4 * math.tan(math.radians(alpha)) ** 2 * height
        losses.append(math.log1p(math.exp(margin)))
    return losses


@draws(10)
@given(seed=st.integers(0, 10_000), alpha=st.floats(5, 60))
def test_equals_a_triple_loop(seed, alpha):
    embeddings, triplets, factor = make(seed)
    expected = torch.tensor(naive_losses(embeddings, triplets, factor, alpha), dtype=torch.float64)
    losses = angular_loss(embeddings, triplets, factor, alpha, "none")
    atol = math.exp(-20)  # what the softplus of torch leaves out above 20, where it returns its argument
    torch.testing.assert_close(losses, expected, rtol=1e-10, atol=atol)
    torch.testing.assert_close(angular_loss(embeddings, triplets, factor, alpha), expected.sum())
    torch.testing.assert_close(angular_loss(embeddings, triplets, factor, alpha, "mean"), expected.mean())


def test_hand_computed_triangle():
    # z = (0, 0), z+ = (2, 0), z- = (1, 3): side 4, height 9, alpha = 45 degrees: m = 4 - 4 * 9 = -32.
    # With L = e1 the height vanishes: m = 4.
    embeddings = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    triplets = torch.tensor([[0, 1, 2]])
    assert angular_margins(embeddings, triplets, None, 45.0).item() == pytest.approx(-32.0)
    flat = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert angular_margins(embeddings, triplets, flat, 45.0).item() == pytest.approx(4.0)
    assert angular_loss(embeddings, triplets, flat, 45.0).item() == pytest.approx(math.log(1 + math.exp(4)))


def test_small_angle_leaves_the_side_alone():
    embeddings, triplets, factor = make(0)
    side = ((embeddings[triplets[:, 0]] - embeddings[triplets[:, 1]]) @ factor).square().sum(1)
    torch.testing.assert_close(angular_margins(embeddings, triplets, factor, 1e-7), side, rtol=0, atol=1e-12)


@draws(10)
@given(seed=st.integers(0, 10_000))
def test_rotation_of_the_factor_and_translation_change_nothing(seed):
    embeddings, triplets, factor = make(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    rotation = random_orthonormal(3, 3, generator)
    shift = torch.randn(1, 6, generator=generator, dtype=torch.float64)
    loss = angular_loss(embeddings, triplets, factor)
    torch.testing.assert_close(angular_loss(embeddings, triplets, factor @ rotation), loss, rtol=1e-10, atol=0)
    torch.testing.assert_close(angular_loss(embeddings + shift, triplets, factor), loss, rtol=1e-10, atol=0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_agrees_with_central_differences(seed):
    embeddings, triplets, factor = make(seed)
    embeddings.requires_grad_()
    factor.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z, metric: angular_loss(z, triplets, metric), (embeddings, factor), eps=1e-6, atol=1e-6, rtol=1e-6
    )


def test_gradients_of_one_triplet_sum_to_zero_and_follow_the_formula():
    embeddings, _, factor = make(3, n=3)
    embeddings.requires_grad_()
    triplets = torch.tensor([[0, 1, 2]])
    margin = angular_margins(embeddings, triplets, factor, 40.0)
    angular_loss(embeddings, triplets, factor, 40.0).backward()
    z, p, q = embeddings.detach()
    tau, slope = math.tan(math.radians(40.0)) ** 2, torch.sigmoid(margin.detach())
    side, height = factor @ (factor.T @ (z - p)), factor @ (factor.T @ (q - (z + p) / 2))
    expected = slope * torch.stack([2 * side + 4 * tau * height, -2 * side + 4 * tau * height, -8 * tau * height])
    torch.testing.assert_close(embeddings.grad, expected)
    assert embeddings.grad.sum(0).abs().max() < 1e-12


def test_float32_stays_float32_and_huge_margins_stay_finite():
    embeddings, triplets, factor = make(0, dtype=torch.float32)
    loss = angular_loss(100 * embeddings, triplets, factor)
    assert loss.dtype == torch.float32
    assert loss.isfinite()


def test_duplicates_give_log_two_and_no_triplets_give_zero():
    embeddings = torch.ones(3, 4)
    assert angular_loss(embeddings, torch.tensor([[0, 1, 2]])).item() == pytest.approx(math.log(2))
    none = torch.empty(0, 3, dtype=torch.int64)
    assert angular_loss(embeddings, none).item() == 0.0
    assert angular_loss(embeddings, none, reduction="mean").item() == 0.0


@pytest.mark.parametrize("alpha", [0.0, 90.0, -5.0, float("nan")])
def test_refuses_an_impossible_angle(alpha):
    embeddings, triplets, factor = make(0)
    with pytest.raises(InputError, match="alpha"):
        angular_loss(embeddings, triplets, factor, alpha)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"embeddings": torch.ones(3)}, "embeddings"),
        ({"embeddings": torch.ones(12, 6, dtype=torch.int64)}, "embeddings"),
        ({"triplets": torch.ones(4, 2, dtype=torch.int64)}, "triplets"),
        ({"triplets": torch.ones(4, 3)}, "triplets"),
        ({"triplets": torch.tensor([[0, 1, -1]])}, "triplets"),
        ({"triplets": torch.tensor([[0, 1, 12]])}, "triplets"),
        ({"factor": torch.ones(5, 3)}, "factor"),
        ({"reduction": "max"}, "reduction"),
    ],
)
def test_refuses_bad_input(change, word):
    embeddings, triplets, factor = make(0)
    with pytest.raises(InputError, match=word):
        angular_loss(**({"embeddings": embeddings, "triplets": triplets, "factor": factor} | change))
