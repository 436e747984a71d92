import dataclasses

import numpy as np
import pytest
import torch

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import write_tensors
from semimetric.metric import Metric, near_isometry


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distances_are_those_of_the_matrix():
    metric, a, b = Metric(randn(5, 3)), randn(7, 5, seed=1), randn(4, 5, seed=2)
    differences = a[:, None] - b[None]
    expected = torch.einsum("ijd,de,ije->ij", differences, metric.matrix, differences)
    torch.testing.assert_close(metric.squared_distances(a, b), expected)
    torch.testing.assert_close(metric.paired_squared_distances(a[:4], b), expected[:4].diagonal())
    own = metric.squared_distances(a)
    torch.testing.assert_close(own, metric.squared_distances(a, a))
    assert (own >= 0).all()


def test_identity_is_euclidean_and_types_are_kept():
    a = randn(6, 4).float()
    distances = Metric.identity(4).squared_distances(a)
    assert distances.dtype == torch.float32
    torch.testing.assert_close(distances, torch.cdist(a, a).square(), rtol=1e-4, atol=1e-4)


def test_from_matrix_gives_back_the_matrix_and_keeps_the_largest():
    factor = randn(6, 3)
    matrix = factor @ factor.T
    torch.testing.assert_close(Metric.from_matrix(matrix).matrix, matrix)
    torch.testing.assert_close(Metric.from_matrix(matrix, n_components=3).matrix, matrix)
    one = Metric.from_matrix(torch.diag(torch.tensor([1.0, 9.0, 4.0])), n_components=1)
    torch.testing.assert_close(one.factor.abs(), torch.tensor([[0.0], [3.0], [0.0]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("matrix", "components", "word"),
    [
        (torch.diag(torch.tensor([1.0, -0.1])), None, "semi-definite"),
        (torch.tensor([[1.0, 1.0], [0.0, 1.0]]), None, "symmetric"),
        (torch.full((2, 2), float("nan")), None, "finite"),
        (torch.ones(2, 3), None, "square"),
        (torch.ones(4), None, "square"),
        (torch.eye(2), 3, "n_components"),
        (torch.eye(2), 0, "n_components"),
    ],
)
def test_from_matrix_refuses(matrix, components, word):
    with pytest.raises(InputError, match=word):
        Metric.from_matrix(matrix, components)


@pytest.mark.parametrize("components", [1, 3, 6])
def test_principal_spans_the_directions_of_largest_variance(components):
    decomposition = pytest.importorskip("sklearn.decomposition")
    points = randn(40, 6) @ torch.diag(torch.tensor([5.0, 1.0, 3.0, 0.5, 2.0, 0.1], dtype=torch.float64)) + 7
    metric = Metric.principal(points, components)
    axes = torch.from_numpy(decomposition.PCA(components).fit(points.numpy()).components_)
    torch.testing.assert_close(metric.matrix, axes.T @ axes)
    assert metric.is_orthonormal()
    spread = metric.transform(points - points.mean(0)).square().sum(0)
    assert torch.equal(spread, spread.sort(descending=True).values)


def test_principal_keeps_gradients_out_and_takes_single_precision():
    metric = Metric.principal(randn(10, 4).float().requires_grad_(), 2)
    assert metric.factor.dtype == torch.float64
    assert not metric.factor.requires_grad


@pytest.mark.parametrize(("shape", "components"), [((10, 4), 5), ((10, 4), 0), ((10,), 1)])
def test_principal_refuses(shape, components):
    with pytest.raises(InputError, match=rf"n_components is {components}.*must be from 1 to the number of columns"):
        Metric.principal(torch.ones(shape), components)


@pytest.mark.parametrize("factor", [torch.ones(2, 3), torch.ones(4), torch.full((3, 2), float("inf"))])
def test_refuses_what_is_no_factor(factor):
    with pytest.raises(InputError, match="factor"):
        Metric(factor)


def test_refuses_features_of_another_width():
    with pytest.raises(InputError, match="columns"):
        Metric.identity(3).transform(torch.ones(2, 4))


def test_is_immutable():
    factor = randn(3, 2)
    metric = Metric(factor)
    before = metric.factor.clone()
    factor.zero_()
    assert torch.equal(metric.factor, before)
    with pytest.raises(dataclasses.FrozenInstanceError):
        metric.factor = factor


def test_knows_whether_it_is_orthonormal():
    metric = Metric.random_orthonormal(8, 3, torch.Generator().manual_seed(0))
    assert metric.is_orthonormal()
    assert not Metric(1.001 * metric.factor).is_orthonormal()
    assert Metric(1.001 * metric.factor).is_orthonormal(tolerance=0.01)


def test_saves_and_loads(tmp_path):
    metric = Metric(randn(5, 2))
    metric.save(tmp_path / "metric.safetensors")
    assert torch.equal(Metric.load(tmp_path / "metric.safetensors").factor, metric.factor)
    assert torch.equal(metric.to("cpu").factor, metric.factor)
    write_tensors(tmp_path / "other.safetensors", {"weights": torch.ones(2)})
    with pytest.raises(RunError, match="weights"):
        Metric.load(tmp_path / "other.safetensors")


def test_orthonormal_projection_never_lengthens():
    metric = Metric.random_orthonormal(20, 7, torch.Generator().manual_seed(0))
    v = randn(100, 20)
    ratios = metric.transform(v).square().sum(1) / v.square().sum(1)
    assert (ratios >= 0).all()
    assert (ratios <= 1 + 1e-12).all()


def test_near_isometry_of_a_random_subspace_and_its_failure_for_a_chosen_one():
    features = randn(200, 400)
    random = near_isometry(
        Metric.random_orthonormal(400, 200, torch.Generator().manual_seed(1)),
        features,
        500,
        torch.Generator().manual_seed(2),
    )
    assert 0.7 < random[0.0] <= random[0.5] <= random[1.0] < 1.3
    line = torch.zeros(50, 2, dtype=torch.float64)
    line[:, 0] = torch.arange(50)
    across = Metric(torch.tensor([[0.0], [1.0]]))
    blind = near_isometry(across, line, 100, torch.Generator().manual_seed(2))
    assert set(blind.values()) == {0.0}


def test_near_isometry_is_one_for_the_identity_and_ignores_scale():
    features = randn(30, 5)
    for metric in (Metric.identity(5), Metric(3 * torch.eye(5))):
        quantiles = near_isometry(metric, features, 50, torch.Generator().manual_seed(0))
        assert all(value == pytest.approx(1.0) for value in quantiles.values())


@pytest.mark.parametrize(("features", "pairs"), [(torch.ones(1, 3), 5), (torch.ones(4, 3), 5), (torch.eye(3), 0)])
def test_near_isometry_refuses(features, pairs):
    with pytest.raises(InputError):
        near_isometry(Metric.identity(3), features, pairs, torch.Generator())


def test_arrays_integers_and_gradients_go_through_transform() -> None:
    metric = Metric.identity(3)
    assert torch.equal(metric.transform(np.arange(6).reshape(2, 3)), torch.arange(6.0).double().reshape(2, 3))
    assert float(metric.squared_distances([[0, 0, 0]], [[1, 2, 2]])) == 9.0
    features = torch.ones(2, 3, requires_grad=True)
    metric.transform(features).sum().backward()
    assert torch.equal(features.grad, torch.ones(2, 3))


@pytest.mark.parametrize("orthogonal", [True, False])
def test_eigenvalues_are_squared_singular_values(orthogonal: bool) -> None:
    factor = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
    metric = Metric.from_matrix(factor @ factor.T, 4) if orthogonal else Metric(factor)
    expected = torch.linalg.svdvals(factor).square()
    torch.testing.assert_close(metric.eigenvalues().sort(descending=True).values, expected)
