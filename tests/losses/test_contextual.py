from __future__ import annotations

import math

import pytest
import torch
from helpers.draws import draws
from helpers.losses import assert_can_be_recorded, value_and_gradient
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.losses import contextual_targets, neighbourhood_divergence, relaxed_contrastive_loss
from semimetric.losses.contextual import relative_distances
from semimetric.metric import random_orthonormal


def make(seed, n=12, d=5, dtype=torch.float64):
    """Rows, targets for them, and rows of another width."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=generator, dtype=dtype)
    targets = torch.rand(n, n, generator=generator, dtype=dtype)
    return rows, (targets + targets.T) / 2, torch.randn(n, d + 2, generator=generator, dtype=dtype)


def distance(x, y):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def naive_targets(rows, examples, labels, bandwidth, k, smoothing):
    """W by sets and loops."""
    count = len(rows)
    unit = [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in rows]
    similar = [[math.exp(-(distance(x, y) ** 2) / bandwidth) for y in unit] for x in unit]

    def nearest(i, many):
        def rank(j):
            return (j != i, -1.0 if examples[i] == examples[j] else -similar[i][j], j)

        return sorted(range(count), key=rank)[:many]

    mutual = [{j for j in nearest(i, k) if i in nearest(j, k)} for i in range(count)]
    share = [
        [len(mutual[i] & mutual[j]) / len(mutual[i]) if j in mutual[i] else 0.0 for j in range(count)]
        for i in range(count)
    ]
    mean = [
        [sum(share[m][j] for m in nearest(i, smoothing)) / min(smoothing, count) for j in range(count)]
        for i in range(count)
    ]
    found = [[(similar[i][j] + (mean[i][j] + mean[j][i]) / 2) / 2 for j in range(count)] for i in range(count)]
    for i in range(count):
        for j in range(count):
            if labels[i] >= 0 and labels[j] >= 0:
                found[i][j] = 1.0 if labels[i] == labels[j] else 0.0
    return found


def naive_relative(rows):
    distances = [[distance(x, y) for y in rows] for x in rows]
    return [[entry / (sum(row) / len(row)) for entry in row] for row in distances]


def naive_loss(rows, targets):
    relative, total, count = naive_relative(rows), 0.0, len(rows)
    for i in range(count):
        for j in range(count):
            if i != j:
                d, w = relative[i][j], targets[i][j]
                total += w * d**2 + (1 - w) * max(0.0, 1 - d) ** 2
    return total / (count * (count - 1))


def naive_divergence(source, rows):
    total = 0.0
    for wanted, found in zip(naive_relative(source), naive_relative(rows), strict=True):
        p = [math.exp(-d) / sum(math.exp(-e) for e in wanted) for d in wanted]
        q = [math.exp(-d) / sum(math.exp(-e) for e in found) for d in found]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return total / len(rows)


@st.composite
def problems(draw):
    count = draw(st.integers(1, 14))
    examples = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    labels = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
    return draw(st.integers(0, 10_000)), examples, labels, draw(st.floats(0.2, 5)), draw(st.integers(1, 16))


@draws(60)
@given(problems(), st.integers(1, 8))
def test_targets_equal_loops_over_sets(problem, smoothing):
    seed, examples, labels, bandwidth, k = problem
    rows, _, _ = make(seed, n=len(examples))
    found = contextual_targets(rows, torch.tensor(examples), torch.tensor(labels), bandwidth, k, smoothing)
    expected = naive_targets(rows.tolist(), examples, labels, bandwidth, k, smoothing)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@draws(30)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 30), k=st.integers(1, 12))
def test_targets_are_symmetric_shares_that_follow_the_order_of_rows(seed, n, k):
    rows, _, _ = make(seed, n=n)
    examples = torch.arange(n) // 2
    found = contextual_targets(rows, examples, k=k)
    torch.testing.assert_close(found, found.T)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(contextual_targets(rows[order], examples[order], k=k), found[order][:, order])


@draws(20)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 12))
def test_losses_equal_loops(seed, n):
    rows, targets, source = make(seed, n=n)
    assert float(relaxed_contrastive_loss(rows, targets)) == pytest.approx(naive_loss(rows.tolist(), targets.tolist()))
    found = float(neighbourhood_divergence(source, rows))
    assert found == pytest.approx(naive_divergence(source.tolist(), rows.tolist()))
    assert found >= 0


@draws(10)
@given(seed=st.integers(0, 10_000))
def test_order_rotation_shift_and_scale_change_no_loss(seed):
    rows, targets, source = make(seed)
    generator = torch.Generator().manual_seed(seed)
    order, rotation = torch.randperm(12, generator=generator), random_orthonormal(5, 5, generator)
    moved = 3 * rows @ rotation + 7
    loss, divergence = relaxed_contrastive_loss(rows, targets), neighbourhood_divergence(source, rows)
    torch.testing.assert_close(relaxed_contrastive_loss(moved, targets), loss)
    torch.testing.assert_close(relaxed_contrastive_loss(rows[order], targets[order][:, order]), loss)
    torch.testing.assert_close(neighbourhood_divergence(2 * source - 1, moved), divergence)
    torch.testing.assert_close(neighbourhood_divergence(source[order], rows[order]), divergence)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_agree_with_central_differences(seed):
    rows, targets, source = make(seed)
    rows.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: relaxed_contrastive_loss(z, targets), (rows,), eps=1e-6, atol=1e-6)
    assert torch.autograd.gradcheck(lambda z: neighbourhood_divergence(source, z), (rows,), eps=1e-6, atol=1e-6)


def test_two_rows_by_hand():
    """The only distance is twice its mean with the 0 of the row itself, so d = 2 and nothing repels."""
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    targets = torch.tensor([[1.0, 0.25], [0.25, 1.0]])
    assert relative_distances(rows).tolist() == [[0.0, 2.0], [2.0, 0.0]]
    assert float(relaxed_contrastive_loss(rows, targets)) == pytest.approx(0.25 * 4)
    apart = contextual_targets(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    alike = (math.exp(-2 / 3) + 1) / 2  # both are in both contexts
    torch.testing.assert_close(apart, torch.tensor([[1.0, alike], [alike, 1.0]]))


def test_of_one_neighbour_the_context_is_the_row_itself():
    rows, _, _ = make(0)
    found = contextual_targets(rows, torch.arange(12), k=1, smoothing=1)
    unit = torch.nn.functional.normalize(rows)
    similar = torch.exp(-torch.cdist(unit, unit).square() / 3)
    torch.testing.assert_close(found, (similar + torch.eye(12)) / 2)


def test_views_of_an_example_are_neighbours_however_far_apart():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    rows[1] = -rows[0]
    strangers, views = torch.arange(20), torch.arange(20)
    views[1] = 0
    assert contextual_targets(rows, views, k=4)[0, 1] > contextual_targets(rows, strangers, k=4)[0, 1]


def test_labels_decide_where_both_are_known():
    rows, _, _ = make(0)
    examples, labels = torch.arange(12), torch.tensor([0, 0, 1, 1] + [-1] * 8)
    plain, found = contextual_targets(rows, examples), contextual_targets(rows, examples, labels)
    assert torch.equal(found[:4, :4], torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).double())
    assert torch.equal(found[4:], plain[4:])
    assert torch.equal(contextual_targets(rows, examples, torch.full((12,), -1)), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 12])
def test_rows_that_are_all_the_same_stay_finite_and_have_no_gradient(n, dtype):
    rows = torch.full((n, 7), 0.3, dtype=dtype)
    targets = contextual_targets(rows, torch.arange(n))
    assert targets.isfinite().all()
    assert 0 <= float(targets.min()) <= float(targets.max()) <= 1
    half = torch.full((n, n), 0.5, dtype=dtype)
    loss, gradient = value_and_gradient(relaxed_contrastive_loss, rows, half)
    assert float(loss) == pytest.approx(0.5 if n > 1 else 0.0)
    assert torch.equal(gradient, torch.zeros_like(rows))
    loss, gradient = value_and_gradient(lambda z, s: neighbourhood_divergence(s, z), rows, make(0, n=n)[2].to(dtype))
    assert loss.isfinite()
    assert torch.equal(gradient, torch.zeros_like(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_among_others_have_a_finite_gradient(dtype):
    rows, targets, source = make(0, dtype=dtype)
    rows[[3, 5]] = rows[1].clone()
    rows[7] = 0.0
    assert torch.equal(relative_distances(rows)[[1, 3, 5]][:, [1, 3, 5]], torch.zeros(3, 3, dtype=dtype))
    for loss in (lambda z: relaxed_contrastive_loss(z, targets), lambda z: neighbourhood_divergence(source, z)):
        value, gradient = value_and_gradient(loss, rows)
        assert value.isfinite()
        assert gradient.isfinite().all()
    assert contextual_targets(rows, torch.arange(12)).isfinite().all()


def test_no_rows_give_zero():
    rows = torch.zeros(0, 3)
    assert contextual_targets(rows, torch.zeros(0, dtype=torch.int64)).shape == (0, 0)
    assert float(relaxed_contrastive_loss(rows, torch.zeros(0, 0))) == 0
    assert float(neighbourhood_divergence(rows, rows)) == 0


def test_targets_and_source_are_constants():
    rows, targets, source = (tensor.requires_grad_() for tensor in make(0))
    (relaxed_contrastive_loss(rows, targets) + neighbourhood_divergence(source, rows)).backward()
    assert rows.grad is not None
    assert targets.grad is source.grad is None
    assert not contextual_targets(rows, torch.arange(12)).requires_grad


def test_descending_brings_together_what_targets_call_alike():
    rows, _, _ = make(0)
    classes = torch.arange(12) % 3
    targets = (classes[:, None] == classes).double()
    for _ in range(300):
        _, gradient = value_and_gradient(relaxed_contrastive_loss, rows, targets)
        rows = rows - 5.0 * gradient
    distances = relative_distances(rows)
    assert distances[targets == 1].max() < 0.2 < 0.9 < distances[targets == 0].min()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_computed_in_float32(dtype):
    rows, targets, source = (tensor.to(dtype) for tensor in make(0, dtype=torch.float32))
    assert contextual_targets(rows, torch.arange(12)).dtype == torch.float32
    assert torch.equal(relaxed_contrastive_loss(rows, targets), relaxed_contrastive_loss(rows.float(), targets.float()))
    found = neighbourhood_divergence(source, rows)
    assert torch.equal(found, neighbourhood_divergence(source.float(), rows.float()))


def test_nothing_larger_than_the_matrix_of_pairs(largest_tensor):
    rows, targets, source = make(0, n=40)
    with largest_tensor() as record:
        contextual_targets(rows, torch.arange(40), torch.arange(40) % 3)
        value_and_gradient(relaxed_contrastive_loss, rows, targets)
        value_and_gradient(lambda z: neighbourhood_divergence(source, z), rows)
    assert record.entries == 40 * 40


def whole(rows, source, examples, labels):
    """Targets and both losses."""
    targets = contextual_targets(source, examples, labels)
    return relaxed_contrastive_loss(rows, targets) + neighbourhood_divergence(source, rows)


def test_never_looks_at_values():
    """On torch's meta device tensors have shapes and no values, so an operation that asks for a value raises."""
    rows, _, source = (tensor.to("meta") for tensor in make(0))
    numbers = torch.zeros(12, dtype=torch.int64, device="meta")
    loss, gradient = value_and_gradient(whole, rows, source, numbers, numbers)
    assert loss.is_meta
    assert gradient.shape == rows.shape


@pytest.mark.gpu
def test_value_and_gradient_can_be_recorded():
    first, second = (
        (rows, source, torch.arange(12) // 2, torch.arange(12) % 4 - 1)
        for rows, _, source in (make(seed, dtype=torch.float32) for seed in (0, 1))
    )
    assert_can_be_recorded(whole, first, second)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"embeddings": torch.ones(12)}, r"embeddings have the shape \(12,\)"),
        ({"examples": torch.zeros(9, dtype=torch.int64)}, r"examples have the shape \(9,\) .*, \(12,\)"),
        ({"examples": torch.zeros(12)}, "examples have .* the type torch.float32; give one int64"),
        ({"examples": torch.zeros(12, dtype=torch.int64, device="meta")}, "examples are on meta, .* on cpu; move"),
        ({"labels": torch.zeros(12)}, "labels have .* the type torch.float32; give one int64"),
        ({"bandwidth": 0.0}, "bandwidth must be a finite number above 0, got 0.0"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"smoothing": 0}, "smoothing must be at least 1, got 0"),
    ],
)
def test_targets_refuse_bad_input(change, sentence):
    with pytest.raises(InputError, match=sentence):
        contextual_targets(**({"embeddings": make(0)[0], "examples": torch.arange(12)} | change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"embeddings": torch.ones(12, 5, dtype=torch.int64)}, "embeddings have .* the type torch.int64"),
        ({"targets": torch.ones(12, 11)}, r"targets have the shape \(12, 11\) .*, \(12, 12\)"),
        ({"targets": torch.ones(12, 12, dtype=torch.int64)}, "targets have .* the type torch.int64; give a floating"),
        ({"targets": torch.full((12, 12), 1.5)}, "targets run from 1.5 to 1.5; give numbers from 0 to 1"),
        ({"targets": torch.full((12, 12), math.nan)}, "targets run from nan to nan"),
        ({"targets": torch.ones(12, 12, device="meta")}, "targets are on meta, .* on cpu; move"),
    ],
)
def test_the_loss_refuses_bad_input(change, sentence):
    rows, targets, _ = make(0)
    with pytest.raises(InputError, match=sentence):
        relaxed_contrastive_loss(**({"embeddings": rows, "targets": targets} | change))


@pytest.mark.parametrize("source", [torch.ones(12), torch.ones(11, 3), torch.ones(12, 3, dtype=torch.int64)])
def test_the_divergence_refuses_a_source_of_other_rows(source):
    with pytest.raises(InputError, match=r"source has the shape .*; give a floating-point row .*, \(12, l\)"):
        neighbourhood_divergence(source, make(0)[0])
