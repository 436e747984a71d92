"""Constraints that are kept for all epochs on a partition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.methods import METHODS, build_method
from semimetric.training import Run, Silent, Trainer, TrainingData, TrainingSettings

KEEPING = ["affinity-triplets", "apit", "apllr", "isdml", "lrml"]
OTHERS = sorted({*METHODS} - {*KEEPING, "consensus"})

pytestmark = pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")


class Interrupt(Silent):
    """Presses Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.at = epoch

    def batch(self, epoch: int, done: int, total: int) -> None:
        if (epoch, done) == (self.at, 2):
            raise KeyboardInterrupt


def noting(trainer: Trainer) -> list[Tensor]:
    """The features of which a trainer makes constraints, from now on."""
    seen: list[Tensor] = []
    make = trainer.method.constraints

    def constraints(features: Tensor, labels: Tensor):
        seen.append(features)
        return make(features, labels)

    trainer.method.constraints = constraints
    return seen


def ended(run: Run) -> dict[str, Tensor]:
    return run.read_tensors("checkpoint.safetensors")[0]


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("method", "each", "times"),
    [("affinity-triplets", 1, 4), ("affinity-triplets", 2, 2), ("lrml", 3, 2), ("isdml", 4, 1), ("apllr", 3, 2)],
)
def test_constraints_are_made_once_for_each_partition(make_trainer, method: str, each: int, times: int) -> None:
    trainer = make_trainer(method=method, lr=1e-3, epochs_per_partition=each, renew="partition")
    seen = noting(trainer)
    trainer.fit()
    assert len(seen) == times
    again = make_trainer(method=method, lr=1e-3, epochs_per_partition=each)
    seen = noting(again)
    again.fit()
    assert len(seen) == 4


@pytest.mark.parametrize("method", ["affinity-triplets", "isdml", "apllr"])
def test_with_one_epoch_for_each_partition_nothing_changes(make_trainer, tmp_path: Path, method: str) -> None:
    ends = []
    for renew in ("epoch", "partition"):
        run = Run.create(tmp_path / renew, {})
        make_trainer(run, method=method, lr=1e-3, epochs_per_partition=1, renew=renew).fit()
        ends.append({name: tensor for name, tensor in ended(run).items() if name != "mined_from"})
    assert_same(*ends)


def test_with_more_epochs_the_encoder_learns_from_the_older_graph(make_trainer) -> None:
    found = [make_trainer(lr=1e-3, renew=renew, selection="last").fit() for renew in ("epoch", "partition")]
    assert not torch.equal(found[0].metric.factor, found[1].metric.factor)


@pytest.mark.parametrize(
    ("method", "broken_in"), [*(("affinity-triplets", epoch) for epoch in range(1, 7)), *((m, 5) for m in KEEPING[1:])]
)
def test_a_run_that_is_interrupted_resumes_bit_for_bit(
    make_trainer, tmp_path: Path, method: str, broken_in: int
) -> None:
    """Epochs 1 to 3 are on one partition, and 4 to 6 on the next; mined again are the features of its first epoch."""
    changes = {"method": method, "lr": 1e-3, "epochs": 6, "epochs_per_partition": 3, "renew": "partition"}
    whole_run, broken_run = Run.create(tmp_path / "whole", {}), Run.create(tmp_path / "broken", {})
    whole = make_trainer(whole_run, **changes)
    mined = noting(whole)
    whole.fit()
    trainer = make_trainer(broken_run, **changes)
    trainer.progress = Interrupt(broken_in)
    assert trainer.fit().interrupted
    resumed = make_trainer(broken_run, **changes)
    again = noting(resumed)
    resumed.fit()
    expected = mined if broken_in <= 3 else mined[1:]
    assert len(again) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    assert_same(ended(broken_run), ended(whole_run))
    histories = [[r | {"seconds": 0} for r in run.history()] for run in (broken_run, whole_run)]
    assert histories[0] == histories[1]


def train(method: str, renew: str) -> Trainer:
    points = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.arange(40) < 12, torch.arange(40) % 3, -1)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8))
    settings = TrainingSettings(renew=renew, lr=1e-3, selection="last", epochs=1, average=0.9)
    return Trainer(network, build_method(method), TrainingData(points, labels), settings)


@pytest.mark.parametrize("method", OTHERS)
def test_a_method_without_metric_and_graph_is_refused(method: str) -> None:
    sentence = (
        rf"keeps the graph of a partition, and method '{method}' learns no metric from a graph\. Use renew 'epoch'"
    )
    with pytest.raises(InputError, match=sentence):
        train(method, "partition")
    assert train(method, "epoch").epoch == 0


def test_predictions_that_change_with_the_network_are_not_kept() -> None:
    with pytest.raises(InputError, match=r"'consensus' renews its predictions in every epoch\. Use renew 'epoch'"):
        train("consensus", "partition")


def test_another_word_is_refused() -> None:
    with pytest.raises(InputError, match="renew must be one of epoch, partition, got 'never'"):
        TrainingSettings(renew="never")
