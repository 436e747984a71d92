import itertools

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.metric import scatters
from semimetric.metric.scatters import pair_means, pair_scatters, weighted_energy, weighted_scatter

labelled = st.tuples(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 5), st.integers(1, 5))
edges = st.tuples(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 5), st.integers(0, 30))


def make(seed, n, d, most_classes):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return features, 7 * torch.randint(most_classes, (n,), generator=generator)


def make_edges(seed, n, d, count, scaled):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=generator, dtype=torch.float64)
    pairs = torch.randint(n, (count, 2), generator=generator)
    weights = torch.randn(count, generator=generator, dtype=torch.float64)
    scales = torch.rand(count, 2, generator=generator, dtype=torch.float64) if scaled else None
    return features, pairs, weights, scales


def rotation(d, seed=0):
    return torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q


def slow_scatters(features, classes):
    sums = {same: torch.zeros(2 * features.shape[1:], dtype=torch.float64) for same in (True, False)}
    counts = {True: 0, False: 0}
    for i, j in itertools.combinations(range(len(features)), 2):
        same = bool(classes[i] == classes[j])
        v = features[i] - features[j]
        sums[same] += torch.outer(v, v)
        counts[same] += 1
    return *(sums[same] / max(counts[same], 1) for same in (True, False)), counts[True], counts[False]


def slow_weighted_scatter(features, pairs, weights, scales):
    total = torch.zeros(2 * features.shape[1:], dtype=torch.float64)
    for p, (i, j) in enumerate(pairs.tolist()):
        first, second = (1.0, 1.0) if scales is None else scales[p].tolist()
        v = first * features[i] - second * features[j]
        total += weights[p] * torch.outer(v, v)
    return total


@draws(40)
@given(size=labelled)
def test_scatters_are_those_of_the_double_loop(size):
    features, classes = make(*size)
    found = pair_scatters(features, classes)
    similar, dissimilar, similar_pairs, dissimilar_pairs = slow_scatters(features, classes)
    torch.testing.assert_close(found.similar, similar, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.dissimilar, dissimilar, rtol=0, atol=1e-12)
    assert (found.similar_pairs, found.dissimilar_pairs) == (similar_pairs, dissimilar_pairs)


@draws(30)
@given(size=labelled)
def test_scatters_are_symmetric_positive_and_blind_to_order_and_place(size):
    features, classes = make(*size)
    found = pair_scatters(features, classes)
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(size[0]))
    turn = rotation(features.shape[1])
    again = pair_scatters((features[order] + 3) @ turn, classes[order])
    for one, other in ((found.similar, again.similar), (found.dissimilar, again.dissimilar)):
        assert torch.equal(one, one.T)
        assert torch.linalg.eigvalsh(one)[0] > -1e-10
        torch.testing.assert_close(turn.T @ one @ turn, other, rtol=0, atol=1e-11)


@draws(30)
@given(size=labelled)
def test_means_are_traces_of_the_scatters(size):
    embeddings, classes = make(*size)
    found = pair_scatters(embeddings, classes)
    similar, dissimilar = pair_means(embeddings, classes)
    torch.testing.assert_close(similar, found.similar.trace(), rtol=0, atol=1e-12)
    torch.testing.assert_close(dissimilar, found.dissimilar.trace(), rtol=0, atol=1e-12)


def test_without_a_pair_everything_is_zero_and_so_are_gradients():
    points = torch.tensor([[0.1, 0.7], [0.3, 0.2], [0.6, 0.1]], requires_grad=True)
    one_class, all_different = torch.zeros(3, dtype=torch.int64), torch.arange(3)
    assert pair_means(points, one_class)[1] == 0
    assert pair_means(points, all_different)[0] == 0
    assert torch.equal(pair_scatters(points, one_class).dissimilar, torch.zeros(2, 2))
    assert torch.equal(pair_scatters(points, all_different).similar, torch.zeros(2, 2))
    (pair_means(points, one_class)[1] + pair_means(points, all_different)[0]).backward()
    assert torch.equal(points.grad, torch.zeros(3, 2))
    alone = pair_scatters(points[:1], one_class[:1])
    assert (alone.similar_pairs, alone.dissimilar_pairs) == (0, 0)


def test_float32_keeps_its_digits_far_from_the_origin_and_in_tight_classes():
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(40) % 4
    centres = 100 + torch.randn(4, 6, generator=generator, dtype=torch.float64)
    features = (centres[classes] + 1e-3 * torch.randn(40, 6, generator=generator, dtype=torch.float64)).float()
    exact, found = pair_scatters(features.double(), classes), pair_scatters(features, classes)
    assert found.similar.dtype == torch.float32
    for one, other in ((found.similar, exact.similar), (found.dissimilar, exact.dissimilar)):
        assert (one - other).norm() < 1e-3 * other.norm()
    for mean, scatter in zip(pair_means(features, classes), (exact.similar, exact.dissimilar), strict=True):
        assert mean.dtype == torch.float32
        assert mean.item() == pytest.approx(scatter.trace().item(), rel=1e-3)


@pytest.mark.parametrize("classes", [[0, 0, 1, 1, 2], [3, 3, 3, 3, 3], [0, 1, 2, 3, 4]])
def test_gradients_of_the_means(classes):
    embeddings = make(1, 5, 3, 1)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda e: pair_means(e, torch.tensor(classes)), (embeddings,))


@pytest.mark.parametrize("scaled", [False, True])
@draws(30)
@given(size=edges)
def test_weighted_scatter_is_that_of_the_loop_and_energy_its_trace(scaled, size):
    features, pairs, weights, scales = make_edges(*size, scaled)
    found = weighted_scatter(features, pairs, weights, scales)
    torch.testing.assert_close(found, slow_weighted_scatter(features, pairs, weights, scales), rtol=0, atol=1e-11)
    torch.testing.assert_close(weighted_energy(features, pairs, weights, scales), found.trace(), rtol=0, atol=1e-11)
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("scaled", [False, True])
def test_weighted_scatter_in_blocks(monkeypatch, scaled):
    features, pairs, weights, scales = make_edges(3, 9, 4, 100, scaled)
    whole = weighted_scatter(features, pairs, weights, scales)
    monkeypatch.setattr(scatters, "PAIR_BLOCK", 7)
    torch.testing.assert_close(weighted_scatter(features, pairs, weights, scales), whole, rtol=0, atol=1e-12)


def test_weighted_scatter_holds_one_block_of_differences_at_a_time(monkeypatch, largest_tensor):
    features, pairs, weights, scales = make_edges(3, 9, 4, 1000, scaled=True)
    monkeypatch.setattr(scatters, "PAIR_BLOCK", 50)
    with largest_tensor() as watch:
        weighted_scatter(features, pairs, weights, scales)
    assert watch.entries <= 2 * len(pairs)  # the pairs themselves; 50 x 2 x 4 in a block


def test_weighted_scatter_is_the_quadratic_form_of_the_laplacian():
    features = make(4, 8, 3, 1)[0]
    affinity = torch.rand(8, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    affinity = torch.triu(affinity, 1) + torch.triu(affinity, 1).T
    pairs = torch.triu_indices(8, 8, 1).T.contiguous()
    form = features.T @ (torch.diag(affinity.sum(1)) - affinity) @ features
    torch.testing.assert_close(weighted_scatter(features, pairs, affinity[pairs[:, 0], pairs[:, 1]]), form)


@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_of_the_energy_and_of_the_scatter(scaled):
    features, pairs, weights, scales = make_edges(5, 6, 3, 10, scaled)
    inputs = (features.requires_grad_(), weights.requires_grad_())
    assert torch.autograd.gradcheck(lambda z, w: weighted_energy(z, pairs, w, scales), inputs)
    assert torch.autograd.gradcheck(lambda z, w: weighted_scatter(z, pairs, w, scales), inputs)


def test_energy_keeps_the_type_of_the_embeddings():
    features, pairs, weights, scales = make_edges(5, 6, 3, 10, scaled=True)
    assert weighted_energy(features.float(), pairs, weights, scales).dtype == torch.float32
    assert weighted_scatter(features.float(), pairs, weights, scales).dtype == torch.float32


@pytest.mark.parametrize(
    ("features", "classes", "word"),
    [
        (torch.ones(3), torch.zeros(3, dtype=torch.int64), "features"),
        (torch.ones(0, 2), torch.zeros(0, dtype=torch.int64), "features"),
        (torch.ones(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), "features"),
        (torch.full((3, 2), float("nan")), torch.zeros(3, dtype=torch.int64), "features"),
        (torch.ones(3, 2), torch.zeros(2, dtype=torch.int64), "classes"),
        (torch.ones(3, 2), torch.zeros(3), "classes"),
        (torch.ones(3, 2), torch.tensor([0, -1, 1]), "unlabelled"),
    ],
)
def test_pair_scatters_refuse(features, classes, word):
    with pytest.raises(InputError, match=word):
        pair_scatters(features, classes)


@pytest.mark.parametrize(
    ("pairs", "weights", "scales"),
    [
        (torch.zeros(4, 3, dtype=torch.int64), torch.ones(4), None),
        (torch.zeros(4, 2), torch.ones(4), None),
        (torch.zeros(4, 2, dtype=torch.int64), torch.ones(4, 1), None),
        (torch.zeros(4, 2, dtype=torch.int64), torch.ones(4), torch.ones(4)),
    ],
)
@pytest.mark.parametrize("function", [weighted_scatter, weighted_energy])
def test_weighted_sums_refuse(function, pairs, weights, scales):
    with pytest.raises(InputError, match="pairs"):
        function(torch.ones(5, 2), pairs, weights, scales)


def test_what_a_recorded_step_uses_never_looks_at_values():
    """On the meta device there are none: reading one, or a shape that depends on one, raises."""
    features, pairs, weights, scales = (tensor.to("meta") for tensor in make_edges(5, 6, 3, 10, scaled=True))
    features.requires_grad_()
    similar, dissimilar = pair_means(features, torch.empty(6, dtype=torch.int64, device="meta"))
    total = similar - dissimilar + weighted_energy(features, pairs, weights, scales)
    total = total + weighted_scatter(features, pairs, weights, scales).trace()
    assert torch.autograd.grad(total, features)[0].shape == features.shape


@pytest.mark.gpu
def test_means_and_energy_and_their_gradients_can_be_recorded():
    features, pairs, weights, scales = (tensor.cuda() for tensor in make_edges(5, 6, 3, 10, scaled=True))
    features.requires_grad_()
    classes = torch.tensor([0, 0, 1, 1, 2, 5], device="cuda")

    def gradient():
        similar, dissimilar = pair_means(features, classes)
        loss = similar - dissimilar + weighted_energy(features, pairs, weights, scales)
        return torch.autograd.grad(loss, features)[0]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = gradient()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        recorded = gradient()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(recorded, expected)
