from __future__ import annotations

import math

import pytest
import torch
from helpers.draws import draws
from helpers.losses import NO_BATCHES, assert_can_be_recorded, value_and_gradient
from hypothesis import example, given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.losses import triplet_loss, triplet_violations
from semimetric.metric import random_orthonormal
from semimetric.mining import labelled_masks, semi_hard_negatives


def make(seed, n=10, d=4, classes=3, dtype=torch.float64):
    """Embeddings, targets that use every class, and draws."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, d, generator=generator, dtype=dtype)
    return embeddings, torch.arange(n) % classes, torch.rand(n, n, generator=generator, dtype=dtype)


def loss_and_gradient(*arguments):
    return value_and_gradient(triplet_loss, *arguments)


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=1)


def naive_triplets(distances, targets, draws, margin):
    """Every anchor and positive with the negative that its draw chooses, and whether that is semi-hard."""
    count = len(targets)
    for a in range(count):
        negatives = sorted((distances[a][n], n) for n in range(count) if targets[n] != targets[a] and targets[n] >= 0)
        for p in range(count):
            if p != a and targets[p] == targets[a] >= 0 and negatives:
                semi_hard = [(d, n) for d, n in negatives if distances[a][p] < d < distances[a][p] + margin]
                among = semi_hard or negatives
                yield a, p, among[int(draws[a][p] * len(among))][1], bool(semi_hard)


def naive_loss(embeddings, targets, draws, margin):
    rows = [[x / math.hypot(*row) for x in row] for row in embeddings]
    distances = [[sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]
    terms = [
        max(0.0, distances[a][p] - distances[a][n] + margin)
        for a, p, n, _ in naive_triplets(distances, targets, draws, margin)
    ]
    return sum(terms) / max(len(terms), 1)


@st.composite
def problems(draw):
    targets = draw(st.lists(st.integers(-1, 3), min_size=1, max_size=9))
    return draw(st.integers(0, 10_000)), targets, draw(st.floats(0.01, 5))


@draws(100)
@given(problems())
@example((0, [0, 0, 1, 1, 1, -1, -1, 2], 0.2))
@example((1, [0, 0, 0, 0, 1], 2.0))
def test_equals_a_triple_loop(problem):
    seed, targets, margin = problem
    embeddings, _, draws = make(seed, n=len(targets), d=3)
    loss = triplet_loss(embeddings, torch.tensor(targets), draws, margin)
    expected = naive_loss(embeddings.tolist(), targets, draws.tolist(), margin)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_hand_computed_mean_over_all_pairs():
    # On a circle, squared distances are 2 - 2 cos: 1 for 60 degrees, 2 for 90, 3 for 120, 4 for 180.
    angles = torch.deg2rad(torch.tensor([0.0, 60.0, 180.0, -120.0], dtype=torch.float64))
    embeddings = torch.stack([angles.cos(), angles.sin()], dim=1)
    targets, draws = torch.tensor([0, 0, 1, 1]), torch.zeros(4, 4, dtype=torch.float64)
    # Nearest negatives: 3 (3), 2 (3), 1 (3), 0 (3). Every pair is at 1, so that margin 2.5 leaves 0.5 of each.
    assert triplet_loss(embeddings, targets, draws, 2.5).item() == pytest.approx(0.5)
    embeddings[1] = -embeddings[1]  # at 240 degrees, in the place of the fourth: d2(0, 1) = 3, and 1 and 3 coincide
    # (0, 1): semi-hard within 2.5 is 2 at 4: 1.5. (1, 0): at 3, negatives at 0 and 1, none farther: 3 is first: 5.5.
    # (2, 3): at 1, negatives 1 at 1, not farther, and 0 at 4, too far: 1 is first: 2.5.
    # (3, 2): at 1, negatives 1 at 0 and 0 at 3: 0 is semi-hard: 0.5.
    found, pairs = triplet_violations(embeddings, targets, draws, 2.5)
    torch.testing.assert_close(found[pairs], torch.tensor([1.5, 5.5, 2.5, 0.5], dtype=torch.float64))
    # A small margin: (0, 1) has no semi-hard negative, 3 is first of all (3): 0.1. (3, 2): 1 is first (0): 1.1.
    easy, _ = triplet_violations(embeddings, targets, draws, 0.1)
    torch.testing.assert_close(easy[pairs], torch.tensor([0.1, 3.1, 0.1, 1.1], dtype=torch.float64))
    far = torch.full((4, 4), 0.99, dtype=torch.float64)  # the farthest of all: at 4, 1, 4 and 3
    kept, _ = triplet_violations(embeddings, targets, far, 0.1)
    torch.testing.assert_close(kept[pairs], torch.tensor([-0.9, 2.1, -2.9, -1.9], dtype=torch.float64))
    assert triplet_loss(embeddings, targets, far, 0.1).item() == pytest.approx(2.1 / 4)


@draws(30)
@given(seed=st.integers(0, 10_000), margin=st.floats(0.01, 2))
def test_the_negative_is_semi_hard_wherever_one_is(seed, margin):
    embeddings, targets, draws = make(seed, n=12, d=3)
    targets[5] = -1
    distances = torch.cdist(unit(embeddings), unit(embeddings)).square()
    chosen = semi_hard_negatives(distances, targets, draws, margin)
    positive, negative = labelled_masks(targets)
    seen = 0
    for a, p, n, semi_hard in naive_triplets(distances.tolist(), targets.tolist(), draws.tolist(), margin):
        assert int(chosen[a, p]) == n
        assert bool(negative[a, n])
        if semi_hard:
            assert distances[a, p] < distances[a, n] < distances[a, p] + margin
        seen += 1
    assert seen == int(positive.sum())


@pytest.mark.parametrize(("margin", "members"), [(0.35, [2, 3]), (0.55, [2, 3, 4]), (0.05, [1, 2, 3, 4, 5])])
def test_draws_choose_evenly_among_the_semi_hard_or_among_all(margin, members):
    """One anchor, 0, its positive, 6, at 0.45 and negatives at 0.1, 0.6, 0.7, 0.9 and 3, not in this order."""
    targets = torch.tensor([0, 1, 2, 2, 3, 1, 0])
    distances = torch.zeros(7, 7)
    distances[0] = torch.tensor([0.0, 0.1, 0.6, 0.7, 0.9, 3.0, 0.45])
    order = torch.tensor([0, 4, 2, 5, 1, 3, 6])
    shuffled, classes = distances[order][:, order], targets[order]
    counts = torch.zeros(7, dtype=torch.int64)
    for draw in (torch.arange(600) + 0.5) / 600:
        counts[order[semi_hard_negatives(shuffled, classes, draw.expand(7, 7), margin)[0, 6]]] += 1
    expected = torch.zeros(7, dtype=torch.int64)
    expected[members] = 600 // len(members)
    assert torch.equal(counts, expected)


def test_the_window_is_open_at_both_ends():
    distances = torch.tensor([[0.0, 1.0, 1.0, 1.5, 0.25]]).expand(5, 5)
    targets = torch.tensor([0, 0, 1, 1, 1])
    last = torch.full((5, 5), 0.99)
    assert semi_hard_negatives(distances, targets, last, 0.5)[0, 1] == 3  # the farthest of all, as none is within
    assert semi_hard_negatives(distances, targets, 0 * last, 0.5)[0, 1] == 4  # the nearest of all
    assert semi_hard_negatives(distances, targets, 0 * last, 0.5 + 2**-20)[0, 1] == 3


@pytest.mark.parametrize("margin", [0.25, 1.0])  # sums of these are not rounded
def test_a_single_point_costs_the_margin(margin):
    _, targets, draws = make(0)
    axis = torch.tensor([[0.0, 3.0, 0.0]], dtype=torch.float64).expand(10, 3)
    loss, gradient = loss_and_gradient(axis, targets, draws, margin)
    assert loss.item() == margin
    assert torch.equal(gradient, torch.zeros(10, 3, dtype=torch.float64))
    oblique = torch.tensor([[0.3, -1.7, 0.4]], dtype=torch.float64).expand(10, 3)
    assert triplet_loss(oblique, targets, draws, margin).item() == pytest.approx(margin, rel=1e-12)


@draws(10)
@given(seed=st.integers(0, 10_000))
def test_order_rotation_length_and_names_of_classes_change_nothing(seed):
    embeddings, targets, draws = make(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    order = torch.randperm(10, generator=generator)
    rotation = random_orthonormal(4, 4, generator)
    lengths = torch.logspace(-3, 3, 10, dtype=torch.float64)[order, None]
    loss = triplet_loss(embeddings, targets, draws)
    for changed in (
        triplet_loss(embeddings[order], targets[order], draws[order][:, order]),
        triplet_loss(embeddings @ rotation, targets, draws),
        triplet_loss(embeddings * lengths, targets, draws),
        triplet_loss(embeddings, 5 - targets, draws),
    ):
        torch.testing.assert_close(changed, loss, rtol=1e-9, atol=1e-12)


@draws(30)
@given(problems())
def test_it_lies_between_zero_and_the_greatest_distance_with_the_margin(problem):
    seed, targets, margin = problem
    embeddings, _, draws = make(seed, n=len(targets))
    loss, gradient = loss_and_gradient(embeddings, torch.tensor(targets), draws, margin)
    assert 0 <= loss <= 4 + margin
    assert gradient.isfinite().all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_agrees_with_central_differences(seed):
    embeddings, targets, draws = make(seed)
    targets[-1] = -1
    assert torch.autograd.gradcheck(
        lambda z: triplet_loss(z, targets, draws, 0.7), (embeddings.requires_grad_(),), eps=1e-6, atol=1e-6, rtol=1e-6
    )


def test_unlabelled_rows_take_no_part():
    embeddings, targets, draws = make(0)
    targets[[2, 7]] = -1
    kept = (targets >= 0).nonzero().flatten()
    loss, gradient = loss_and_gradient(embeddings, targets, draws)
    alone, gradient_alone = loss_and_gradient(embeddings[kept], targets[kept], draws[kept][:, kept])
    torch.testing.assert_close(loss, alone)
    torch.testing.assert_close(gradient[kept], gradient_alone)
    assert torch.equal(gradient[[2, 7]], torch.zeros(2, 4, dtype=torch.float64))


NO_TRIPLET = {
    "one class": torch.zeros(6, dtype=torch.int64),
    "all targets different": torch.arange(6),
    "all unlabelled": torch.full((6,), -1),
    "one class and unlabelled": torch.tensor([4, 4, 4, -1, -1, -1]),
}


@pytest.mark.parametrize("case", NO_TRIPLET)
def test_no_triplet_gives_zero_and_no_gradient(case):
    embeddings, _, draws = make(0, n=6)
    loss, gradient = loss_and_gradient(embeddings, NO_TRIPLET[case], draws)
    assert loss == 0
    assert torch.equal(gradient, torch.zeros_like(embeddings))


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_rows_give_zero(count):
    loss, gradient = loss_and_gradient(
        torch.ones(count, 3), torch.zeros(count, dtype=torch.int64), torch.zeros(count, count)
    )
    assert loss == 0
    assert torch.equal(gradient, torch.zeros(count, 3))


def test_zero_rows_lie_in_the_middle_of_the_sphere():
    embeddings = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    loss, gradient = loss_and_gradient(embeddings, torch.tensor([0, 0, 1]), torch.zeros(3, 3), 0.2)
    assert loss.item() == pytest.approx(2 - 1 + 0.2)
    assert gradient.isfinite().all()


def test_descending_parts_the_classes_and_ends_at_zero():
    embeddings, targets, _ = make(0, n=12)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(150):
        draws = torch.rand(12, 12, generator=generator)
        loss, gradient = loss_and_gradient(embeddings, targets, draws, 0.5)
        losses.append(loss.item())
        embeddings = embeddings - gradient
    assert losses[0] > 0.5
    assert losses[-1] == 0
    distances = torch.cdist(unit(embeddings), unit(embeddings)).square()
    positive, negative = labelled_masks(targets)
    assert distances[positive].max() < distances[negative].min()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_computed_in_float32(dtype):
    embeddings, targets, draws = make(0, dtype=torch.float32)
    embeddings = embeddings.to(dtype)
    loss, gradient = loss_and_gradient(embeddings, targets, draws)
    expected, wide_gradient = loss_and_gradient(embeddings.float(), targets, draws)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, wide_gradient.to(dtype))


def test_nothing_larger_than_a_few_matrices_of_pairs(largest_tensor):
    """At b = 512 a tensor of all triplets would have 512 times as many entries."""
    embeddings, targets, draws = make(0, n=512, d=16, classes=40, dtype=torch.float32)
    with largest_tensor() as record:
        loss_and_gradient(embeddings, targets, draws)
    assert record.entries == 512 * 512


def test_never_looks_at_values():
    """On torch's meta device tensors have shapes and no values, so an operation that asks for a value raises."""
    embeddings, targets, draws = (tensor.to("meta") for tensor in make(0))
    loss, gradient = loss_and_gradient(embeddings, targets, draws)
    assert loss.shape == ()
    assert loss.is_meta
    assert gradient.shape == embeddings.shape


@pytest.mark.gpu
def test_value_and_gradient_can_be_recorded():
    assert_can_be_recorded(triplet_loss, make(0, dtype=torch.float32), make(1, dtype=torch.float32))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *NO_BATCHES,
        ({"draws": torch.zeros(10)}, r"draws have the shape \(10,\) .* \(10, 10\)"),
        ({"draws": torch.zeros(10, 10, dtype=torch.int64)}, "draws have .* the type torch.int64; give a floating"),
        ({"draws": torch.full((10, 10), -0.1)}, "draws run from -0.1.* to -0.1.*; give numbers from 0 up to 1"),
        ({"draws": torch.ones(10, 10)}, "draws run from 1.0 to 1.0; give numbers from 0 up to 1, exclusive"),
        ({"draws": torch.full((10, 10), math.nan)}, "draws run from nan to nan"),
        ({"draws": torch.zeros(10, 10, device="meta")}, "draws are on meta, .* are on cpu; move"),
        ({"margin": 0.0}, "margin must be a finite number above 0, got 0.0"),
        ({"margin": math.nan}, "margin .* got nan"),
    ],
)
def test_refuses_bad_input(change, sentence):
    embeddings, targets, draws = make(0)
    with pytest.raises(InputError, match=sentence):
        triplet_loss(**({"embeddings": embeddings, "targets": targets, "draws": draws} | change))
