import pytest
import torch

from semimetric.core.errors import InputError
from semimetric.data import Examples


def test_subset_keeps_order_and_pairs() -> None:
    examples = Examples(torch.arange(10.0).reshape(5, 2), torch.tensor([0, 1, 2, -1, 4], dtype=torch.int32))
    part = examples.subset([3, 0])
    assert len(part) == 2
    assert part.inputs.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert part.labels.tolist() == [-1, 0]
    assert examples.labels.dtype == torch.int64


def test_empty_subset() -> None:
    assert len(Examples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)).subset([])) == 0


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64), r"one entry per example, that is shape \(3,\)"),
        (torch.zeros(3, 2), torch.zeros(3), "must be integers"),
        (torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool), "must be integers"),
        (torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.int64), "one entry per example"),
        (torch.zeros(3, 2), torch.tensor([0, -2, 1]), "got -2"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64), r"shape \(3,\)"),
        (torch.tensor([[float("nan")]]), torch.zeros(1, dtype=torch.int64), "finite"),
    ],
)
def test_bad_examples_are_refused(inputs: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Examples(inputs, labels)
