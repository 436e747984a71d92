import math

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from semimetric.metric import minimize_angular, random_orthonormal

pymanopt = pytest.importorskip("pymanopt", reason="the comparison with pymanopt needs pymanopt installed")


def make(seed, d, l, t):  # noqa: E741
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, d, generator=generator, dtype=torch.float64)
    own = torch.randint(5, (t,), generator=generator)
    other = (own + torch.randint(1, 5, (t,), generator=generator)) % 5
    noise = torch.randn(3, t, d, generator=generator, dtype=torch.float64)
    points = torch.nn.functional.normalize(centres[torch.stack([own, own, other])] + noise, dim=-1)
    return random_orthonormal(d, l, generator), *points.unbind(0)


def pymanopt_cost(start, anchor, positive, negative, alpha, iterations):
    """The textbook form, sides and heights apart, so that it shares no formula with the code under test."""
    manifold = pymanopt.manifolds.Stiefel(*start.shape)
    sides = (anchor - positive).numpy()
    heights = (negative - (anchor + positive) / 2).numpy()
    tau = math.tan(math.radians(alpha)) ** 2

    def margins(point):
        return ((sides @ point) ** 2).sum(1) - 4 * tau * ((heights @ point) ** 2).sum(1)

    @pymanopt.function.numpy(manifold)
    def cost(point):
        return float(np.logaddexp(0, margins(point)).sum())

    @pymanopt.function.numpy(manifold)
    def gradient(point):
        s = 1 / (1 + np.exp(-margins(point)))[:, None]
        return 2 * sides.T @ (s * (sides @ point)) - 8 * tau * heights.T @ (s * (heights @ point))

    optimizer = pymanopt.optimizers.ConjugateGradient(max_iterations=iterations, verbosity=0)
    problem = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient)
    with threadpool_limits(1):  # on a busy machine the threads of small products only wait for each other
        return float(optimizer.run(problem, initial_point=start.numpy()).cost)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("iterations", [1, 10, 60])
def test_reaches_the_cost_of_pymanopt_after_as_many_steps(seed, iterations):
    problem = make(seed, 32, 12, 40)
    # pymanopt counts the start as its first iteration.
    theirs = pymanopt_cost(*problem, 40.0, iterations + 1)
    ours = minimize_angular(*problem, 40.0, max_iterations=iterations).cost.item()
    assert ours == pytest.approx(theirs, rel=0.01)
