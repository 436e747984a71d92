import math

import pytest
import torch
from helpers.draws import draws
from helpers.losses import NO_BATCHES, assert_can_be_recorded, value_and_gradient
from hypothesis import example, given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.losses import contrastive_loss
from semimetric.metric import random_orthonormal


def make(seed, n=10, d=5, classes=3, dtype=torch.float64):
    """Embeddings, targets that use every class, and weights strictly between 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, d, generator=generator, dtype=dtype)
    return embeddings, torch.arange(n) % classes, torch.rand(n, generator=generator, dtype=dtype)


def loss_and_gradient(*arguments):
    return value_and_gradient(contrastive_loss, *arguments)


def naive_loss(embeddings, targets, weights, temperature):
    lengths = [math.sqrt(sum(x * x for x in row)) for row in embeddings]
    count, total = len(embeddings), 0.0
    for i in range(count):
        scores, denominator = {}, 0.0
        for j in range(count):
            if j == i:
                continue
            product = 0.0
            for x, y in zip(embeddings[i], embeddings[j], strict=True):
                product += (x / lengths[i]) * (y / lengths[j])
            scores[j] = product / temperature
            denominator += max(weights[j], 0.001) * math.exp(scores[j])
        positives = [j for j in scores if targets[j] == targets[i] != -1]
        mass = sum(weights[j] for j in positives)
        if mass > 0:
            inner = sum(weights[j] * (scores[j] - math.log(denominator)) for j in positives)
            total -= weights[i] * inner / mass
    return total / count


@st.composite
def problems(draw):
    count = draw(st.integers(1, 8))
    targets = draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count))
    weight = st.sampled_from([0.0, 1e-4, 1e-3, 1.0]) | st.floats(0, 1, allow_subnormal=False)
    weights = draw(st.lists(weight, min_size=count, max_size=count))
    return draw(st.integers(0, 10_000)), targets, weights, draw(st.floats(0.05, 2))


@draws(100)
@given(problems())
@example((0, [0, 0, 1, 1, 1, -1, -1], [0.5, 1.0, 0.0, 0.2, 0.9, 1.0, 0.4], 0.1))
@example((1, [0, 0, 1, 1], [0.0, 1.0, 1e-4, 0.3], 0.07))
def test_equals_a_triple_loop(problem):
    seed, targets, weights, temperature = problem
    embeddings, _, _ = make(seed, n=len(targets))
    confidence = torch.tensor(weights, dtype=torch.float64)
    loss = contrastive_loss(embeddings, torch.tensor(targets), confidence, temperature)
    expected = naive_loss(embeddings.tolist(), targets, weights, temperature)
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_hand_computed_right_angle():
    # Rows e1, e1, e2 at temperature 1/2: s_12 = 2, s_13 = s_23 = 0, and w_3 = 0 still repels with 0.001.
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    targets = torch.tensor([4, 4, 7])
    each = math.log(math.exp(2) + 1) - 2
    assert contrastive_loss(embeddings, targets, None, 0.5).item() == pytest.approx(2 * each / 3)
    weights = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
    first = math.log(0.5 * math.exp(2) + 0.001) - 2
    second = math.log(math.exp(2) + 0.001) - 2
    expected = (first + 0.5 * second) / 3
    assert expected < 0
    assert contrastive_loss(embeddings, targets, weights, 0.5).item() == pytest.approx(expected)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradient_agrees_with_central_differences(seed):
    embeddings, targets, weights = make(seed)
    weights[seed] = 0.0
    targets[-1] = -1
    for given_weights in (None, weights):
        assert torch.autograd.gradcheck(
            lambda z, w=given_weights: contrastive_loss(z, targets, w, 0.3),
            (embeddings.requires_grad_(),),
            eps=1e-6,
            atol=1e-6,
            rtol=1e-6,
        )


@draws(10)
@given(seed=st.integers(0, 10_000))
def test_order_rotation_and_length_of_rows_change_nothing(seed):
    embeddings, targets, weights = make(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    order = torch.randperm(10, generator=generator)
    rotation = random_orthonormal(5, 5, generator)
    lengths = torch.logspace(-3, 3, 10, dtype=torch.float64)[order, None]
    loss = contrastive_loss(embeddings, targets, weights)
    for changed in (
        contrastive_loss(embeddings[order], targets[order], weights[order]),
        contrastive_loss(embeddings @ rotation, targets, weights),
        contrastive_loss(embeddings * lengths, targets, weights),
        contrastive_loss(embeddings, 5 - targets, weights),
    ):
        torch.testing.assert_close(changed, loss, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("confidence", [0.0, 1e-4, 1e-3, 0.3, 1.0])
def test_equal_weights_scale_the_gradient_and_shift_the_value(confidence):
    """Each l_ij loses log max(c, FLOOR), so c (loss + h log max(c, FLOOR)), h the share of anchors with positives."""
    embeddings, targets, _ = make(0)
    targets[0], targets[1], share = 7, -1, 0.8
    weights = torch.full((10,), confidence, dtype=torch.float64)
    plain, plain_gradient = loss_and_gradient(embeddings, targets)
    loss, gradient = loss_and_gradient(embeddings, targets, weights)
    torch.testing.assert_close(loss, confidence * (plain + share * math.log(max(confidence, 0.001))))
    torch.testing.assert_close(gradient, confidence * plain_gradient)


def test_an_example_of_no_confidence_attracts_nobody_and_still_repels():
    embeddings, targets, weights = make(0)
    weights[4] = 0.0
    loss, gradient = loss_and_gradient(embeddings, targets, weights)
    assert gradient[4].abs().max() > 0
    for target in (0, 2, 9, -1):
        changed = targets.clone()
        changed[4] = target
        assert contrastive_loss(embeddings, changed, weights) == loss
    pair, nobody = torch.tensor([[1.0, 0.2], [1.0, -0.2]]), torch.tensor([1.0, 1.0, 0.0])
    near, far = (torch.cat([pair, torch.tensor([[x, 0.0]])]) for x in (1.0, -1.0))
    targets = torch.tensor([0, 0, 1])
    assert contrastive_loss(near, targets, nobody) > contrastive_loss(far, targets, nobody)


def test_unlabelled_rows_are_nobodys_positives():
    embeddings, _, _ = make(0)
    targets = torch.tensor([0, 0, 1, 1, 1, -1, -1, -1, -1, -1])
    alone = torch.tensor([0, 0, 1, 1, 1, 2, 3, 4, 5, 6])
    assert contrastive_loss(embeddings, targets) == contrastive_loss(embeddings, alone)
    assert contrastive_loss(embeddings, targets) != contrastive_loss(embeddings, targets.clamp(min=0))


def test_weights_are_constants():
    embeddings, targets, weights = make(0)
    embeddings.requires_grad_()
    weights.requires_grad_()
    contrastive_loss(embeddings, targets, weights).backward()
    assert embeddings.grad is not None
    assert weights.grad is None


def test_descending_parts_the_classes_and_ends_at_the_least_value():
    """Three positives share the probability of an anchor, so log 3 is the infimum, neared as negatives vanish."""
    embeddings, targets, _ = make(0, n=12)
    assert contrastive_loss(embeddings, targets) > 2 * math.log(3)
    for _ in range(200):
        loss, gradient = loss_and_gradient(embeddings, targets)
        assert loss > math.log(3)
        embeddings = embeddings - 0.5 * gradient
    assert loss < math.log(3) + 0.005
    rows = torch.nn.functional.normalize(embeddings, dim=1)
    same, similarities = targets[:, None] == targets, rows @ rows.T
    assert similarities[same].min() > similarities[~same].max() + 0.4


NOTHING_TO_PULL = {
    "all targets different": (torch.arange(6), None),
    "all unlabelled": (torch.full((6,), -1), None),
    "no confidence": (torch.arange(6) % 2, torch.zeros(6)),
    "positives without confidence": (torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([1.0, 0.0] * 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("case", NOTHING_TO_PULL)
def test_nothing_to_pull_gives_zero_and_no_gradient(case, temperature, dtype):
    embeddings, _, _ = make(0, n=6, dtype=dtype)
    loss, gradient = loss_and_gradient(embeddings, *NOTHING_TO_PULL[case], temperature)
    assert loss == 0
    assert torch.equal(gradient, torch.zeros_like(embeddings))


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_rows_give_zero(count):
    for weights in (None, torch.ones(count)):
        loss, gradient = loss_and_gradient(torch.ones(count, 3), torch.zeros(count, dtype=torch.int64), weights)
        assert loss == 0
        assert torch.equal(gradient, torch.zeros(count, 3))


@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_identical_rows_give_the_log_of_the_others(temperature):
    embeddings = torch.ones(5, 4)
    loss, gradient = loss_and_gradient(embeddings, torch.zeros(5, dtype=torch.int64), None, temperature)
    assert loss.item() == pytest.approx(math.log(4), abs=1e-4)
    assert gradient.abs().max() < 1e-4


def test_opposite_rows_at_a_low_temperature_stay_finite():
    embeddings = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    loss, gradient = loss_and_gradient(embeddings, torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, 0.0, 1.0, 1.0]), 0.01)
    # Row 0 has a positive of weight 0 and row 1 has weight 0. The positive of row 2 scores 200 less than row 0, of
    # weight 1; that of row 3 scores 200 less than row 1, which repels with the least weight.
    assert loss.item() == pytest.approx((200 + 200 + math.log(0.001)) / 4, rel=1e-5)
    assert gradient.isfinite().all()


def test_zero_rows_stay_zero():
    embeddings, targets, _ = make(0, n=6)
    embeddings[2] = 0.0
    loss, gradient = loss_and_gradient(embeddings, targets, None, 0.01)
    aside = torch.cat([embeddings, torch.zeros(6, 1, dtype=torch.float64)], dim=1)
    aside[2, -1] = 1.0  # at right angles to all others, as is the zero row
    torch.testing.assert_close(loss, contrastive_loss(aside, targets, None, 0.01))
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_computed_in_float32(dtype):
    embeddings, targets, weights = make(0, dtype=torch.float32)
    embeddings = embeddings.to(dtype)
    loss, gradient = loss_and_gradient(embeddings, targets, weights.to(dtype))
    expected, wide_gradient = loss_and_gradient(embeddings.float(), targets, weights.to(dtype).float())
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, wide_gradient.to(dtype))


def test_wide_weights_leave_float32_alone():
    embeddings, targets, weights = make(0, dtype=torch.float32)
    loss, gradient = loss_and_gradient(embeddings, targets, weights.double())
    assert loss.dtype == gradient.dtype == torch.float32
    assert torch.equal(loss, contrastive_loss(embeddings, targets, weights))
    exact = contrastive_loss(embeddings.double(), targets, weights.double())
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_nothing_larger_than_the_matrix_of_similarities(largest_tensor):
    embeddings, targets, weights = make(0, n=40, d=8)
    with largest_tensor() as record:
        loss_and_gradient(embeddings, targets, weights)
    assert record.entries == 40 * 40


@pytest.mark.parametrize("weighted", [False, True])
def test_never_looks_at_values(weighted):
    """On torch's meta device tensors have shapes and no values, so an operation that asks for a value raises."""
    embeddings, targets, weights = (tensor.to("meta") for tensor in make(0))
    loss, gradient = loss_and_gradient(embeddings, targets, weights if weighted else None)
    assert loss.shape == ()
    assert loss.is_meta
    assert gradient.shape == embeddings.shape


@pytest.mark.gpu
def test_value_and_gradient_can_be_recorded():
    assert_can_be_recorded(contrastive_loss, make(0, dtype=torch.float32), make(1, dtype=torch.float32))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *NO_BATCHES,
        ({"weights": torch.ones(9)}, r"weights have the shape \(9,\) .*, \(10,\)"),
        ({"weights": torch.ones(10, dtype=torch.int64)}, "weights have .* the type torch.int64; give one floating"),
        ({"weights": torch.linspace(-0.5, 1, 10)}, r"weights run from -0.5 to 1.0; give confidences from 0 to 1"),
        ({"weights": torch.linspace(0, 1.5, 10)}, r"weights run from 0.0 to 1.5; give confidences from 0 to 1"),
        ({"weights": torch.tensor([1.0] * 9 + [math.nan])}, "weights run from nan to nan"),
        ({"weights": torch.tensor([1.0] * 9 + [math.inf])}, "weights run from 1.0 to inf"),
        ({"weights": torch.ones(10, device="meta")}, "weights are on meta, .* are on cpu; move"),
        ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0.0"),
        ({"temperature": -0.1}, "temperature .* got -0.1"),
        ({"temperature": math.nan}, "temperature .* got nan"),
        ({"temperature": math.inf}, "temperature .* got inf"),
    ],
)
def test_refuses_bad_input(change, sentence):
    embeddings, targets, weights = make(0)
    with pytest.raises(InputError, match=sentence):
        contrastive_loss(**({"embeddings": embeddings, "targets": targets, "weights": weights} | change))
