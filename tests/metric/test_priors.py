import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.metric.priors import likelihood_ratio_prior
from semimetric.metric.scatters import pair_scatters

sizes = st.tuples(st.integers(0, 10_000), st.integers(1, 8), st.integers(2, 4), st.integers(2, 4))


def make(seed, d, classes, per_class):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * per_class) % classes
    centres = 2 * torch.randn(classes, d, generator=generator, dtype=torch.float64)
    return centres[labels] + torch.randn(len(labels), d, generator=generator, dtype=torch.float64), labels


def learn(features, classes, shrinkage=0.1):
    scatters = pair_scatters(features, classes)
    return likelihood_ratio_prior(scatters.similar, scatters.dissimilar, shrinkage)


def diagonal(*values):
    return torch.diag(torch.tensor(values, dtype=torch.float64))


def test_independent_gaussians_give_differences_of_inverse_variances():
    matrix = likelihood_ratio_prior(diagonal(1.0, 2.0, 3.0), diagonal(4.0, 3.0, 1.0), 1e-12)
    expected = torch.tensor([1 / 1 - 1 / 4, 1 / 2 - 1 / 3, 0.0], dtype=torch.float64)
    torch.testing.assert_close(matrix, torch.diag(3 * expected / expected.sum()), rtol=0, atol=1e-9)
    torch.testing.assert_close(likelihood_ratio_prior(diagonal(2.0), diagonal(3.0)), diagonal(1.0))


def test_shrinkage_moves_scatters_towards_their_isotropic_part():
    matrix = likelihood_ratio_prior(diagonal(1.0, 3.0), diagonal(4.0, 8.0), 0.5)
    expected = torch.tensor([1 / 1.5 - 1 / 5, 1 / 2.5 - 1 / 7], dtype=torch.float64)
    torch.testing.assert_close(matrix, torch.diag(2 * expected / expected.sum()))
    isotropic = likelihood_ratio_prior(diagonal(1.0, 3.0), diagonal(4.0, 8.0), 1.0)
    torch.testing.assert_close(isotropic, torch.eye(2, dtype=torch.float64))


def test_equals_the_plain_formula_where_scatters_can_be_inverted():
    features, classes = make(0, 3, 4, 10)
    scatters = pair_scatters(features, classes)
    plain = torch.linalg.inv(scatters.similar) - torch.linalg.inv(scatters.dissimilar)
    values, vectors = torch.linalg.eigh(plain)
    clipped = (vectors * values.clamp(min=0)) @ vectors.T
    torch.testing.assert_close(learn(features, classes, 1e-13), 3 * clipped / clipped.trace(), rtol=0, atol=1e-9)


@draws(40)
@given(size=sizes, shift=st.floats(-3, 3), scale=st.floats(0.1, 10))
def test_is_a_metric_blind_to_order_place_and_scale_that_turns_with_the_features(size, shift, scale):
    features, classes = make(*size)
    matrix = learn(features, classes)
    if matrix is None:
        return
    d = len(matrix)
    assert (matrix - matrix.T).abs().max() < 1e-12
    assert torch.linalg.eigvalsh(matrix)[0] > -1e-10
    assert matrix.trace().item() == pytest.approx(d)
    generator = torch.Generator().manual_seed(size[0])
    order = torch.randperm(len(features), generator=generator)
    turn = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    again = learn(scale * (features[order] + shift) @ turn, classes[order])
    torch.testing.assert_close(again, turn.T @ matrix @ turn, rtol=0, atol=1e-7)


def test_few_labels_in_many_dimensions():
    features, classes = make(1, 128, 10, 2)
    assert torch.linalg.matrix_rank(pair_scatters(features, classes).similar) == 10
    matrix = learn(features, classes)
    assert matrix.isfinite().all()
    assert torch.linalg.eigvalsh(matrix)[0] > -1e-10
    v = features[:, None] - features[None]
    distances = torch.einsum("ijd,de,ije->ij", v, matrix, v)
    same = classes[:, None] == classes[None]
    assert distances[same].sum() / (same.sum() - len(same)) < 0.1 * distances[~same].mean()


def test_float32_scatters_are_taken_and_float64_returned():
    matrix = likelihood_ratio_prior(diagonal(1.0, 2.0).float(), diagonal(4.0, 3.0).float())
    assert matrix.dtype == torch.float64


@pytest.mark.parametrize(
    ("similar", "dissimilar"),
    [
        (diagonal(0.0, 0.0), diagonal(1.0, 1.0)),
        (diagonal(1.0, 1.0), diagonal(0.0, 0.0)),
        (diagonal(3.0, 2.0), diagonal(1.0, 1.0)),
        (diagonal(3.0, 2.0), diagonal(3.0, 2.0)),
    ],
)
def test_nothing_positive_is_none(similar, dissimilar):
    assert likelihood_ratio_prior(similar, dissimilar) is None


def test_one_example_of_each_class_is_none():
    features, _ = make(2, 4, 3, 2)
    assert learn(features, torch.arange(6)) is None
    assert learn(features, torch.zeros(6, dtype=torch.int64)) is None


@pytest.mark.parametrize("shrinkage", [0.0, -0.1, 1.1, float("nan")])
def test_refuses_a_shrinkage_out_of_range(shrinkage):
    with pytest.raises(InputError, match="shrinkage"):
        likelihood_ratio_prior(diagonal(1.0), diagonal(2.0), shrinkage)
