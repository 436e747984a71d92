import pytest
import torch

from semimetric.metric import GraphedFunction, minimize_angular, random_orthonormal


def solve(start, anchor, positive, negative):
    result = minimize_angular(start, anchor, positive, negative)
    return result.point, result.cost, result.iterations


def make(seed, t):
    generator = torch.Generator().manual_seed(seed)
    points = torch.nn.functional.normalize(torch.randn(3, t, 32, generator=generator), dim=-1)
    return random_orthonormal(32, 16, generator), *points.unbind(0)


def test_on_a_cpu_the_function_is_called():
    calls = []

    def double(x):
        calls.append(1)
        return (2 * x,)

    graphed = GraphedFunction(double)
    for value in (1.0, 2.0):
        assert graphed(torch.tensor(value))[0].item() == 2 * value
    assert len(calls) == 2


def test_a_rehearsal_leaves_randomness_as_it_was():
    graphed = GraphedFunction(lambda x: (x + torch.rand(3),))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    graphed.rehearse(torch.zeros(3))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_eager_and_cpu_solves_agree():
    graphed = GraphedFunction(solve)
    kept = []
    for seed, t in [(0, 20), (1, 20), (2, 33), (3, 20)]:
        problem = make(seed, t)
        on_gpu = tuple(tensor.cuda() for tensor in problem)
        for captured, eager, host in zip(graphed(*on_gpu), solve(*on_gpu), solve(*problem), strict=True):
            torch.testing.assert_close(captured, eager, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(captured.cpu(), host, rtol=1e-6, atol=1e-6)
        kept.append((graphed(*on_gpu)[0], on_gpu))
    for point, on_gpu in kept:
        torch.testing.assert_close(point, graphed(*on_gpu)[0], rtol=1e-10, atol=1e-10)
