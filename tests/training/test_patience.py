"""Training that stops when its score does not get better."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.training import Run, Silent, TrainingResult, TrainingSettings

pytestmark = pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")

STOPS = {"epochs": 10, "lr": 1e-3, "patience": 3}
"""With seed 0 the score gets better in epochs 2 and 8, so that training stops in epoch 5."""


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


class Interrupt(Silent):
    """Presses Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.at = epoch

    def batch(self, epoch: int, done: int, total: int) -> None:
        if (epoch, done) == (self.at, 2):
            raise KeyboardInterrupt


def scored(make_trainer, monkeypatch: pytest.MonkeyPatch, scores: list[float], patience: int) -> TrainingResult:
    """A training of at most 8 epochs with these scores, of which the first is that of the start."""
    trainer = make_trainer(epochs=8, patience=patience)
    values = iter(scores)
    monkeypatch.setattr(trainer, "_score", lambda: ((next(values),), {}))
    return trainer.fit()


@pytest.mark.parametrize(
    ("scores", "patience", "epochs", "best"),
    [
        ([0.5, 0.4, 0.4, 0.4, 0.9, 0.9, 0.9, 0.9, 0.9], 2, 2, 0),
        ([0.5, 0.4, 0.6, 0.6, 0.5, 0.9, 0.9, 0.9, 0.9], 2, 4, 2),  # an equal score is not better
        ([0.5, 0.4, 0.6, 0.6, 0.5, 0.9, 0.8, 0.8, 0.8], 3, 8, 5),
        ([0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0], 1, 1, 0),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 1, 8, 8),
        ([0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0], 0, 8, 0),
        ([0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0], 8, 8, 0),
    ],
)
def test_it_stops_after_so_many_epochs_without_a_better_score(
    make_trainer, monkeypatch: pytest.MonkeyPatch, scores: list[float], patience: int, epochs: int, best: int
) -> None:
    result = scored(make_trainer, monkeypatch, scores, patience)
    assert (result.epochs, result.best_epoch, result.interrupted) == (epochs, best, False)


def test_the_model_is_that_of_the_same_epoch_without_patience(make_trainer, tmp_path: Path) -> None:
    run, whole_run = Run.create(tmp_path / "run", {}), Run.create(tmp_path / "whole", {})
    stopped = make_trainer(run, **STOPS).fit()
    make_trainer(whole_run, **(STOPS | {"patience": 0})).fit()
    assert (stopped.best_epoch, stopped.epochs) == (2, 5)
    assert [record["best"] for record in whole_run.history()].index(True, 3) == 8  # what patience gave up
    without_time = [[r | {"seconds": 0} for r in each.history()[:6]] for each in (run, whole_run)]
    assert without_time[0] == without_time[1]
    shorter = make_trainer(**(STOPS | {"patience": 0, "epochs": 5})).fit()
    assert torch.equal(weights(stopped.encoder), weights(shorter.encoder))
    assert torch.equal(stopped.metric.factor, shorter.metric.factor)


@pytest.mark.parametrize("broken_in", [1, 3, 5])
def test_a_resumed_run_stops_where_a_whole_one_does(make_trainer, tmp_path: Path, broken_in: int) -> None:
    whole_run, broken_run = Run.create(tmp_path / "whole", {}), Run.create(tmp_path / "broken", {})
    whole = make_trainer(whole_run, **STOPS).fit()
    trainer = make_trainer(broken_run, **STOPS)
    trainer.progress = Interrupt(broken_in)
    assert trainer.fit().interrupted
    resumed = make_trainer(broken_run, **STOPS).fit()
    assert (resumed.epochs, resumed.best_epoch) == (whole.epochs, whole.best_epoch) == (5, 2)
    assert torch.equal(weights(resumed.encoder), weights(whole.encoder))
    ends = [each.read_tensors("checkpoint.safetensors")[0] for each in (whole_run, broken_run)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_that_has_stopped_does_not_go_on_when_it_is_resumed(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    make_trainer(run, **STOPS).fit()
    before = (run.path / "checkpoint.safetensors").read_bytes()
    assert make_trainer(run, **STOPS).fit().epochs == 5
    assert (run.path / "checkpoint.safetensors").read_bytes() == before


def test_it_needs_a_score_and_a_number() -> None:
    with pytest.raises(InputError, match=r"patience waits for a better score, and selection 'last' has none\. Leave"):
        TrainingSettings(patience=1, selection="last")
    with pytest.raises(InputError, match="selection 'last' has none"):
        resolve_benchmark("digits", "consensus", patience=3)
    with pytest.raises(InputError, match="patience must"):
        TrainingSettings(patience=-1)
    assert TrainingSettings(patience=0, selection="last").patience == 0
