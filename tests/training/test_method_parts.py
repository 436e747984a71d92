"""What a method owns is trained, rehearsed, kept and asked like the encoder."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semimetric.methods import build_method
from semimetric.metric import GraphedFunction
from semimetric.training import Run, Trainer, TrainingData, TrainingSettings
from semimetric.training.checkpoint import trained_tensors
from semimetric.training.optimizer import create_state, optimizer_tensors

CONSENSUS = {"method": "consensus", "optimizer": "adamw", "lr": 1e-3, "metric_every": "epoch"}


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def differing(first: dict[str, Tensor], second: dict[str, Tensor]) -> set[str]:
    assert first.keys() == second.keys()
    return {name for name in first if not torch.equal(first[name], second[name])}


def surprise(trainer: Trainer) -> float:
    """Mean of -log of what the head gives to the labels."""
    rows = trainer.data.labelled
    shares = trainer.method._head_shares(trainer._features(trainer.data.inputs[rows])).detach()
    return float(-shares.gather(1, trainer.data.labels[rows, None]).log().mean())


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_it_is_trained_with_the_encoder(make_trainer, average: float) -> None:
    trainer = make_trainer(average=average, selection="last", passes=4, **(CONSENSUS | {"lr": 1e-2}))
    encoder, head = copied(trainer.encoder), copied(trainer.method.head)
    assert surprise(trainer) == pytest.approx(math.log(3))  # it knows nothing
    torch.manual_seed(0)
    while trainer.epoch < 4:
        trainer._train_epoch()
    assert differing(encoder, copied(trainer.encoder)) == encoder.keys()
    assert differing(head, copied(trainer.method.head)) == {"weight", "bias"}
    assert surprise(trainer) < 0.7 * math.log(3)


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """Copies of all that a step may change."""
    tensors = trained_tensors(trainer) | optimizer_tensors(trainer.optimizer) | trainer.average.state()
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_a_rehearsed_step_leaves_no_trace_in_head_counters_and_averages(make_trainer) -> None:
    """What a GPU does before it records a step, on the CPU, in the middle of training."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    settings = TrainingSettings(optimizer="adamw", lr=1e-2, average=0.9, selection="last")
    trainer = Trainer(encoder, build_method("consensus", k=6), make_trainer().data, settings)
    step = trainer.step
    constraints = trainer.method.constraints(trainer._features(trainer.data.inputs), trainer.data.labels)
    batch = next(iter(constraints.minibatches(20, torch.Generator().manual_seed(0))))
    views = step.views(step.inputs[batch.nodes], 1)[0]
    tensors = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    step._batch_type = type(batch)
    create_state(trainer.optimizer)
    with trainer._weights_of_steps():
        step(trainer.metric, views, batch)  # so that weights and averages are not the same
        before = everything(trainer)
        GraphedFunction(step._on_tensors, step._changed_by_a_step).rehearse(trainer.metric.factor, views, *tensors)
        assert differing(before, everything(trainer)) == set()
        step(trainer.metric, views, batch)
        changed = differing(before, everything(trainer))
    assert {f"encoder.1.{name}" for name in ("weight", "running_mean", "running_var", "num_batches_tracked")} <= changed
    assert {"method.head.weight", "method.head.bias", "method.steps"} <= changed
    assert {"average.steps", "average.0", "optimizer.0.exp_avg", "optimizer.7.exp_avg_sq"} <= changed
    assert int(trainer.average.steps) == int(trainer.method.steps) == 2


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_it_is_loaded_from_the_best_epoch_with_the_encoder(
    make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: float
) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(run, average=average, selection="labels", **CONSENSUS)
    scores = iter([0.5, 0.7, 0.9, 0.88, 0.9])
    seen: list[dict[str, Tensor]] = []
    shares: list[Tensor] = []

    def score():
        seen.append(copied(trainer.method))
        shares.append(trainer.posteriors().shares)
        return (next(scores),), {}

    monkeypatch.setattr(trainer, "_score", score)
    assert trainer.fit().best_epoch == 2
    assert differing(seen[2], seen[4]) >= {"head.weight", "head.bias", "steps"}
    assert differing(copied(trainer.method), seen[2]) == set()
    assert torch.equal(trainer.posteriors().shares, shares[2])
    again = make_trainer(run, average=average, selection="labels", **CONSENSUS)
    assert again.fit().best_epoch == 2  # there is nothing left to train
    assert differing(copied(again.method), seen[2]) == set()


def test_posteriors_know_every_label_also_those_held_back(make_trainer) -> None:
    trainer = make_trainer(hold_back=0.25, **CONSENSUS)
    assert len(trainer.held_back.rows) == 3
    found = trainer.posteriors()
    assert torch.equal(found.classes, torch.arange(3))
    assert found.shares.shape == (90, 3)  # of all examples, not of one partition
    assert torch.equal(found.shares[:12], nn.functional.one_hot(trainer.data.labels[:12], 3).double())
    assert torch.equal(found.confidence[:12], torch.ones(12).double())
    assert float(found.confidence[12:].max()) < 1.0


def test_posteriors_are_those_of_the_model_as_it_is(make_trainer) -> None:
    trainer = make_trainer(selection="last", **CONSENSUS)
    before = trainer.posteriors()
    trainer.fit()
    after = trainer.posteriors()
    features = trainer._features(trainer.data.inputs)
    expected = trainer.method.constraints(features, trainer.data.labels)
    assert torch.equal(after.shares, expected.shares)
    assert torch.equal(after.confidence, expected.confidence)
    assert not torch.equal(after.shares, before.shares)


def test_posteriors_name_the_classes_that_labels_name(make_trainer) -> None:
    data = make_trainer().data
    labels = torch.where(data.labels >= 0, 5 * data.labels + 3, -1)
    settings = TrainingSettings(selection="last")
    found = Trainer(nn.Linear(12, 8), build_method("consensus", k=6), TrainingData(data.inputs, labels), settings)
    posteriors = found.posteriors()
    assert torch.equal(posteriors.classes, torch.tensor([3, 8, 13]))
    assert torch.equal(posteriors.classes[posteriors.shares.argmax(1)][:12], labels[:12])
