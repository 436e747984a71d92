import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.metric import Euclidean, Stiefel, orthonormalize, random_orthonormal, retract

GEOMETRIES = [Stiefel(), Euclidean(), Euclidean(radius=1.0)]
sizes = st.tuples(st.integers(0, 10_000), st.integers(1, 8), st.integers(0, 8)).map(lambda s: (s[0], s[1] + s[2], s[1]))


def make(seed, d, l, geometry=None):  # noqa: E741
    generator = torch.Generator().manual_seed(seed)
    point = random_orthonormal(d, l, generator)
    vector = torch.randn(d, l, generator=generator, dtype=torch.float64)
    return point, vector if geometry is None else geometry.project(point, vector), generator


def gram_error(point):
    return (point.T @ point - torch.eye(point.shape[1], dtype=point.dtype)).abs().max().item()


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@draws(20)
@given(size=sizes)
def test_projection_is_an_orthogonal_projection(geometry, size):
    point, vector, generator = make(*size)
    other = torch.randn(vector.shape, generator=generator, dtype=torch.float64)
    once = geometry.project(point, vector)
    torch.testing.assert_close(geometry.project(point, once), once, rtol=0, atol=1e-12)
    left, right = (once * other).sum(), (vector * geometry.project(point, other)).sum()
    torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@draws(20)
@given(size=sizes)
def test_retraction_starts_at_the_point_and_batches(geometry, size):
    point, direction, _ = make(*size, geometry)
    zero = torch.zeros((), dtype=torch.float64)
    torch.testing.assert_close(retract(geometry, point, direction, zero), point, rtol=0, atol=1e-15)
    steps = torch.tensor([0.0, 0.3, 2.0], dtype=torch.float64)
    batch = geometry.correction(point, direction)(steps)
    for step, correction in zip(steps, batch, strict=True):
        expected = retract(geometry, point, direction, step)
        torch.testing.assert_close((point + step * direction) @ correction, expected, rtol=0, atol=1e-12)


@draws(30)
@given(size=sizes, step=st.floats(0, 10))
def test_stiefel_retraction_is_qr_with_signs_fixed(size, step):
    point, direction, _ = make(*size, Stiefel())
    moved = retract(Stiefel(), point, direction, torch.tensor(step, dtype=torch.float64))
    torch.testing.assert_close(moved, orthonormalize(point + step * direction), rtol=0, atol=1e-10)
    assert gram_error(moved) < 1e-10


def test_stiefel_tangent_vectors_have_no_symmetric_part_and_retraction_is_first_order():
    point, direction, _ = make(5, 9, 4, Stiefel())
    inner = point.T @ direction
    assert (inner + inner.T).abs().max() < 1e-12
    step = torch.tensor(1e-6, dtype=torch.float64)
    slope = (retract(Stiefel(), point, direction, step) - point) / step
    torch.testing.assert_close(slope, direction, rtol=0, atol=1e-4)


@draws(20)
@given(size=sizes)
def test_linear_functions_retract_with_the_point(size):
    point, direction, generator = make(*size, Stiefel())
    rows = torch.randn(7, point.shape[0], generator=generator, dtype=torch.float64)
    step = torch.tensor(0.7, dtype=torch.float64)
    seen = (rows @ point + step * (rows @ direction)) @ Stiefel().correction(point, direction)(step)
    expected = rows @ retract(Stiefel(), point, direction, step)
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-11)


def test_entering_stiefel_repairs_drift_and_keeps_what_is_right():
    point, vector, _ = make(1, 20, 8)
    assert torch.equal(Stiefel().repair(point), point)
    assert Stiefel().repair(point).data_ptr() != point.data_ptr()
    assert gram_error(Stiefel().repair(point + 1e-13 * vector)) < 1e-14
    repaired = Stiefel().repair(point + 1e-6 * vector)
    assert gram_error(repaired) < 1e-13
    assert (repaired - point).abs().max() < 1e-4


def test_euclidean_ball_holds():
    geometry = Euclidean(radius=2.0)
    point, direction, _ = make(2, 6, 4, geometry)
    limit = 2.0 * 4**0.5
    far = retract(geometry, point, direction, torch.tensor(1e6, dtype=torch.float64))
    assert far.norm().item() == pytest.approx(limit)
    assert geometry.repair(100 * point).norm().item() == pytest.approx(limit)
    torch.testing.assert_close(
        retract(geometry, point, direction, torch.tensor(0.01, dtype=torch.float64)), point + 0.01 * direction
    )


def test_random_orthonormal_is_orthonormal_seeded_and_typed():
    one, two, three = (random_orthonormal(9, 4, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert gram_error(one) < 1e-14
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert random_orthonormal(3, 2, torch.Generator(), dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("shape", [(3, 4), (3, 0)])
def test_refuses_more_columns_than_rows_or_none(shape):
    with pytest.raises(InputError, match="metric factor"):
        random_orthonormal(*shape, torch.Generator())
