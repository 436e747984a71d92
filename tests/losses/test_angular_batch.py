from __future__ import annotations

import math

import pytest
import torch
from helpers.draws import draws
from helpers.losses import NO_BATCHES, assert_can_be_recorded, value_and_gradient
from hypothesis import example, given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.losses import angular_loss, angular_margins, batch_angular_loss
from semimetric.metric import random_orthonormal
from semimetric.mining import labelled_masks


def make(seed, n=10, d=4, classes=3, dtype=torch.float64):
    """Embeddings and targets that use every class."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=dtype), torch.arange(n) % classes


def loss_and_gradient(*arguments):
    return value_and_gradient(batch_angular_loss, *arguments)


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=1)


def square(angle):
    return math.tan(math.radians(angle)) ** 2


def naive_loss(embeddings, targets, alpha, constant):
    """With the logarithm of a sum taken around its largest term, so that no exponential is too large."""
    rows = [[x / math.hypot(*row) for x in row] for row in embeddings]
    products = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]
    t, count, terms = square(alpha), len(rows), []
    for a in range(count):
        for p in range(count):
            if a == p or not targets[a] == targets[p] >= 0:
                continue
            exponents = [0.0]
            for n in range(count):
                if targets[n] >= 0 and targets[n] != targets[a]:
                    f = 4 * t * (products[a][n] + products[p][n]) - 2 * (1 + t) * products[a][p]
                    exponents.append(f + (2 - 6 * t if constant else 0.0))
            top = max(exponents)
            terms.append(top + math.log(sum(math.exp(f - top) for f in exponents)))
    return sum(terms) / max(len(terms), 1)


@st.composite
def problems(draw):
    targets = draw(st.lists(st.integers(-1, 3), min_size=1, max_size=9))
    return draw(st.integers(0, 10_000)), targets, draw(st.floats(1, 80)), draw(st.booleans())


@draws(100)
@given(problems())
@example((0, [0, 0, 1, 1, 1, -1, -1, 2], 40.0, False))
@example((1, [0, 0, 0, 0, 1], 80.0, True))
def test_equals_a_triple_loop(problem):
    seed, targets, alpha, constant = problem
    embeddings, _ = make(seed, n=len(targets), d=3)
    loss = batch_angular_loss(embeddings, torch.tensor(targets), alpha, constant)
    expected = naive_loss(embeddings.tolist(), targets, alpha, constant)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_hand_computed_right_angle():
    # e_a = e_p = e1, negatives e1 and e2, t = 1: f = 8 - 4 and 0 - 4; with the constant 2 - 6 = -4 they are 0 and -8.
    embeddings = torch.tensor([[1.0, 0.0], [2.0, 0.0], [5.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    targets = torch.tensor([4, 4, 7, 9])
    expected = math.log(1 + math.exp(4) + math.exp(-4))
    assert batch_angular_loss(embeddings, targets, 45.0).item() == pytest.approx(expected)
    expected = math.log(1 + 1 + math.exp(-8))
    assert batch_angular_loss(embeddings, targets, 45.0, constant=True).item() == pytest.approx(expected)


@draws(20)
@given(seed=st.integers(0, 10_000), alpha=st.floats(5, 80))
def test_the_constant_makes_the_geometric_margin(seed, alpha):
    """||a - p||^2 - 4 t ||n - (a + p)/2||^2 = 4 t (a + p) . n - 2 (1 + t) a . p + 2 - 6 t for unit rows."""
    embeddings, _ = make(seed)
    rows, t = unit(embeddings), square(alpha)
    triplets = torch.randint(10, (20, 3), generator=torch.Generator().manual_seed(seed))
    a, p, n = rows[triplets].unbind(1)
    form = 4 * t * ((a + p) * n).sum(1) - 2 * (1 + t) * (a * p).sum(1) + 2 - 6 * t
    torch.testing.assert_close(angular_margins(rows, triplets, None, alpha), form, rtol=1e-10, atol=1e-10)


@draws(20)
@given(seed=st.integers(0, 10_000), alpha=st.floats(5, 80))
def test_with_one_negative_it_is_the_loss_of_triplets(seed, alpha):
    embeddings, _ = make(seed, n=6)
    targets = torch.tensor([0, 0, 0, 1, -1, -1])
    positive, _ = labelled_masks(targets)
    pairs = positive.nonzero()
    triplets = torch.cat([pairs, torch.full((len(pairs), 1), 3)], dim=1)
    expected = angular_loss(unit(embeddings), triplets, None, alpha, "mean")
    loss = batch_angular_loss(embeddings, targets, alpha, constant=True)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)


@draws(20)
@given(seed=st.integers(0, 10_000))
def test_margins_grow_with_the_square_of_the_scale_and_the_loss_not_at_all(seed):
    embeddings, targets = make(seed)
    triplets = torch.randint(10, (20, 3), generator=torch.Generator().manual_seed(seed))
    margins = angular_margins(embeddings, triplets)
    for scale in (0.1, 3.0):
        torch.testing.assert_close(angular_margins(scale * embeddings, triplets), scale**2 * margins)
        scaled = batch_angular_loss(scale * embeddings, targets)
        torch.testing.assert_close(scaled, batch_angular_loss(embeddings, targets))


def test_the_constant_vanishes_at_thirty_degrees_and_nowhere_else():
    embeddings, targets = make(0)
    plain, kept = (
        [batch_angular_loss(embeddings, targets, alpha, constant) for alpha in (25.0, 30.0, 35.0)]
        for constant in (False, True)
    )
    torch.testing.assert_close(kept[1], plain[1], rtol=1e-12, atol=0)
    assert kept[0] > plain[0] + 0.1
    assert kept[2] < plain[2] - 0.1


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_agrees_with_central_differences(seed, constant):
    embeddings, targets = make(seed)
    targets[-1] = -1
    for alpha in (40.0, 70.0):
        assert torch.autograd.gradcheck(
            lambda z, alpha=alpha: batch_angular_loss(z, targets, alpha, constant),
            (embeddings.requires_grad_(),),
            eps=1e-6,
            atol=1e-6,
            rtol=1e-6,
        )


@draws(10)
@given(seed=st.integers(0, 10_000))
def test_order_rotation_length_and_names_of_classes_change_nothing(seed):
    embeddings, targets = make(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    order = torch.randperm(10, generator=generator)
    rotation = random_orthonormal(4, 4, generator)
    lengths = torch.logspace(-3, 3, 10, dtype=torch.float64)[order, None]
    loss = batch_angular_loss(embeddings, targets)
    for changed in (
        batch_angular_loss(embeddings[order], targets[order]),
        batch_angular_loss(embeddings @ rotation, targets),
        batch_angular_loss(embeddings * lengths, targets),
        batch_angular_loss(embeddings, 5 - targets),
    ):
        torch.testing.assert_close(changed, loss, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 40.0, 60.0, 80.0])
def test_float32_rows_in_the_most_extreme_places_give_exact_values(alpha, constant):
    """Anchors opposite to their positives, and negatives on top of one of them: exponents up to 324."""
    axis = torch.tensor([1.0, 0.0, 0.0])
    embeddings = torch.stack([axis, -axis, axis, axis, -axis, axis, torch.tensor([0.0, 1.0, 0.0])])
    for targets in ([0, 0, 1, 1, 2, 2, 3], [0, 0, 1, 1, 1, 1, 3], [0, 1, 0, 0, 1, 0, 2], [0, 0, 1, -1, -1, -1, -1]):
        loss, gradient = loss_and_gradient(embeddings, torch.tensor(targets), alpha, constant)
        expected = naive_loss(embeddings.tolist(), targets, alpha, constant)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected, rel=1e-6)
        assert gradient.isfinite().all()


def test_a_single_point_is_worth_a_known_value():
    """All products are 1: f = 8 t - 2 (1 + t), for each of 6 or 7 negatives of the 10 examples."""
    embeddings, targets = torch.tensor([[0.3, -1.7, 0.4]], dtype=torch.float64).expand(10, 3), torch.arange(10) % 3
    f = 6 * square(40.0) - 2
    each = {negatives: math.log(1 + negatives * math.exp(f)) for negatives in (6, 7)}
    expected = (4 * 3 * each[6] + 2 * 3 * 2 * each[7]) / 24
    loss, gradient = loss_and_gradient(embeddings, targets)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert gradient.abs().max() < 1e-12


def test_unlabelled_rows_take_no_part():
    embeddings, targets = make(0)
    targets[[2, 7]] = -1
    kept = (targets >= 0).nonzero().flatten()
    loss, gradient = loss_and_gradient(embeddings, targets)
    alone, gradient_alone = loss_and_gradient(embeddings[kept], targets[kept])
    torch.testing.assert_close(loss, alone)
    torch.testing.assert_close(gradient[kept], gradient_alone)
    assert torch.equal(gradient[[2, 7]], torch.zeros(2, 4, dtype=torch.float64))


NO_TRIPLET = {
    "one class": torch.zeros(6, dtype=torch.int64),
    "all targets different": torch.arange(6),
    "all unlabelled": torch.full((6,), -1),
    "one class and unlabelled": torch.tensor([4, 4, 4, -1, -1, -1]),
}


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("case", NO_TRIPLET)
def test_no_triplet_gives_zero_and_no_gradient(case, constant):
    embeddings, _ = make(0, n=6)
    for alpha in (40.0, 80.0):
        loss, gradient = loss_and_gradient(embeddings, NO_TRIPLET[case], alpha, constant)
        assert loss == 0
        assert torch.equal(gradient, torch.zeros_like(embeddings))


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_rows_give_zero(count):
    loss, gradient = loss_and_gradient(torch.ones(count, 3), torch.zeros(count, dtype=torch.int64))
    assert loss == 0
    assert torch.equal(gradient, torch.zeros(count, 3))


def test_zero_rows_stay_zero():
    embeddings, targets = make(0, n=6)
    embeddings[2] = 0.0
    loss, gradient = loss_and_gradient(embeddings, targets)
    aside = torch.cat([embeddings, torch.zeros(6, 1, dtype=torch.float64)], dim=1)
    aside[2, -1] = 1.0  # at right angles to all others, as is the zero row
    torch.testing.assert_close(loss, batch_angular_loss(aside, targets))
    assert gradient.isfinite().all()


def test_descending_parts_the_classes():
    embeddings, targets = make(0, n=12)
    losses = []
    for _ in range(100):
        loss, gradient = loss_and_gradient(embeddings, targets)
        losses.append(loss.item())
        embeddings = embeddings - 0.2 * gradient
    assert losses[0] > 2
    assert losses[-1] < 0.1 * losses[0]
    rows = unit(embeddings)
    positive, negative = labelled_masks(targets)
    similarities = rows @ rows.T
    assert similarities[positive].min() > similarities[negative].max() + 0.3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_give_float32(dtype):
    embeddings, targets = make(0, dtype=torch.float32)
    embeddings = embeddings.to(dtype)
    loss, gradient = loss_and_gradient(embeddings, targets)
    expected, wide_gradient = loss_and_gradient(embeddings.float(), targets)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, wide_gradient.to(dtype))


def test_nothing_larger_than_a_few_matrices_of_pairs(largest_tensor):
    """At b = 512 a tensor of all triplets would have 512 times as many entries."""
    embeddings, targets = make(0, n=512, d=16, classes=40, dtype=torch.float32)
    with largest_tensor() as record:
        loss_and_gradient(embeddings, targets)
    assert record.entries == 512 * 512


def test_never_looks_at_values():
    """On torch's meta device tensors have shapes and no values, so an operation that asks for a value raises."""
    embeddings, targets = (tensor.to("meta") for tensor in make(0))
    loss, gradient = loss_and_gradient(embeddings, targets)
    assert loss.shape == ()
    assert loss.is_meta
    assert gradient.shape == embeddings.shape


@pytest.mark.gpu
def test_value_and_gradient_can_be_recorded():
    assert_can_be_recorded(batch_angular_loss, make(0, dtype=torch.float32), make(1, dtype=torch.float32))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *NO_BATCHES,
        ({"alpha": 0.0}, "alpha is 0.0; it must be an angle in degrees above 0 and at most 80"),
        ({"alpha": 80.1}, "alpha is 80.1; .* at most 80"),
        ({"alpha": math.nan}, "alpha is nan"),
    ],
)
def test_refuses_bad_input(change, sentence):
    embeddings, targets = make(0)
    with pytest.raises(InputError, match=sentence):
        batch_angular_loss(**({"embeddings": embeddings, "targets": targets} | change))
