from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers.sealed import reseal
from torch import Tensor, nn

from semimetric.core import manifest
from semimetric.core.errors import DivergedError, InputError, RunError
from semimetric.core.files import Piece
from semimetric.metric import GraphedFunction, Metric
from semimetric.training import Run, Silent, Trainer, TrainingData, TrainingSettings, TrainingWarning
from semimetric.training.checkpoint import trained_tensors, write_checkpoint
from semimetric.training.optimizer import create_state
from semimetric.training.schedule import PartitionSchedule
from semimetric.training.selection import labels_score, validation_score
from semimetric.training.step import TrainingStep
from semimetric.training.trainer import Best


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def strip_times(history: list[dict]) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history]


class Interrupt(Silent):
    """Presses Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.when = (epoch, batch)

    def batch(self, epoch: int, done: int, total: int) -> None:
        if (epoch, done) == self.when:
            raise KeyboardInterrupt


def test_training_moves_encoder_and_metric_and_keeps_the_metric_orthonormal(make_trainer) -> None:
    trainer = make_trainer()
    before, metric = weights(trainer.encoder), trainer.metric
    trainer._begin()
    trainer._train_epoch()
    assert not torch.equal(before, weights(trainer.encoder))
    assert not torch.equal(metric.factor, trainer.metric.factor)
    assert trainer.metric.is_orthonormal(1e-10)


@pytest.mark.parametrize("metric_every", ["batch", "epoch"])
def test_the_metric_moves_as_often_as_asked(make_trainer, monkeypatch: pytest.MonkeyPatch, metric_every: str) -> None:
    trainer = make_trainer(metric_every=metric_every)
    sizes: list[int] = []
    update = trainer.method.update_metric

    def counted(metric: Metric, features: Tensor, constraints) -> Metric:
        assert not features.requires_grad
        sizes.append(len(constraints))
        return update(metric, features, constraints)

    monkeypatch.setattr(trainer.method, "update_metric", counted)
    trainer._train_epoch()
    triplets = (12 + 26) * 3  # 78 unlabelled in three partitions of 26
    assert sizes == ([20] * (triplets // 20) if metric_every == "batch" else [triplets])


def test_nothing_moves_without_a_learning_rate_and_a_metric_step(make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(lr=1e-30, weight_decay=0.0)
    monkeypatch.setattr(trainer.method, "update_metric", lambda metric, features, constraints: metric)
    before = trainer._embed(trainer.data.labelled)
    trainer._train_epoch()
    assert torch.equal(before, trainer._embed(trainer.data.labelled))


def test_a_run_is_reproducible_and_the_seed_matters(make_trainer) -> None:
    first, second, other = make_trainer().fit(), make_trainer().fit(), make_trainer(seed=1).fit()
    assert torch.equal(first.metric.factor, second.metric.factor)
    assert torch.equal(weights(first.encoder), weights(second.encoder))
    assert not torch.equal(first.metric.factor, other.metric.factor)


def test_global_randomness_is_left_as_it_was(make_trainer) -> None:
    trainer = make_trainer()
    before = torch.get_rng_state()
    trainer.fit()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("stop_at", [(2, 2), (3, 1), (4, 3)])
def test_an_interrupted_run_resumes_bit_for_bit(
    make_trainer, tmp_path: Path, optimizer: str, stop_at: tuple[int, int]
) -> None:
    whole_run, broken_run = Run.create(tmp_path / "whole", {}), Run.create(tmp_path / "broken", {})
    whole = make_trainer(whole_run, optimizer=optimizer).fit()
    trainer = make_trainer(broken_run, optimizer=optimizer)
    trainer.progress = Interrupt(*stop_at)
    broken = trainer.fit()
    assert broken.interrupted
    assert broken.epochs == stop_at[0] - 1
    assert broken_run.has("model.safetensors")
    resumed = make_trainer(broken_run, optimizer=optimizer).fit()
    assert not resumed.interrupted
    assert resumed.best_epoch == whole.best_epoch
    assert strip_times(broken_run.history()) == strip_times(whole_run.history())
    whole_end, _ = whole_run.read_tensors("checkpoint.safetensors")
    broken_end, _ = broken_run.read_tensors("checkpoint.safetensors")
    assert whole_end.keys() == broken_end.keys()
    assert all(torch.equal(whole_end[name], broken_end[name]) for name in whole_end)
    assert torch.equal(whole.metric.factor, resumed.metric.factor)
    assert torch.equal(weights(whole.encoder), weights(resumed.encoder))


def test_log_lines_after_the_checkpoint_are_written_again(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    make_trainer(run, epochs=2).fit()
    run.log({"epoch": 3, "ghost": True})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "cut sho')
    make_trainer(run, epochs=4).fit()
    assert [record["epoch"] for record in run.history()] == [0, 1, 2, 3, 4]
    assert not any("ghost" in record for record in run.history())


def test_a_damaged_checkpoint_leaves_the_model_alone(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    make_trainer(run).fit()
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"garbage")
    with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged: it does not fit its SHA-256"):
        make_trainer(run).fit()
    reseal(run.path)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors cannot be read.*start again"):
        make_trainer(run).fit()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_interrupt_before_the_first_epoch_leaves_the_initial_model(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(run)
    before = weights(trainer.encoder)
    trainer.progress = Interrupt(1, 1)
    result = trainer.fit()
    assert result.interrupted
    assert result.best_epoch == 0
    assert torch.equal(before, weights(result.encoder))


def test_the_best_model_is_kept_not_the_last(make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(run)
    scores = iter([0.1, 0.5, 0.9, 0.4, 0.9])
    seen: list[Tensor] = []

    def score():
        seen.append(weights(trainer.encoder))
        return (next(scores),), {}

    monkeypatch.setattr(trainer, "_score", score)
    result = trainer.fit()
    assert result.best_epoch == 2  # the first of two equal ones
    assert torch.equal(weights(result.encoder), seen[2])
    stored, state = run.read_tensors("model.safetensors")
    assert state["epoch"] == 2
    assert torch.equal(stored["metric.factor"], result.metric.factor)


def test_validation_examples_never_reach_the_method(make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(validation=True, selection="validation")
    other = make_trainer(validation=True, selection="validation")
    other.data.validation_inputs.mul_(-3.0)  # other withheld examples must change the choice at most, never a step
    seen: list[list[Tensor]] = [[], []]
    for each, log in zip((trainer, other), seen, strict=True):
        constraints = each.method.constraints
        monkeypatch.setattr(each.method, "constraints", lambda z, y, c=constraints, s=log: s.append(z) or c(z, y))
        torch.manual_seed(0)  # dropout
        while each.epoch < 4:
            each._train_epoch()
    assert all(len(features) == 12 + 26 for features in seen[0])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    assert torch.equal(weights(trainer.encoder), weights(other.encoder))


def test_known_classes_reach_only_the_log(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "with", {})
    with_classes = make_trainer(run).fit()
    assert all({"right_positive", "right_negative", "right_both"} <= set(r) for r in run.history()[1:])
    trainer = make_trainer()
    trainer.data = TrainingData(trainer.data.inputs, trainer.data.labels)
    assert torch.equal(weights(with_classes.encoder), weights(trainer.fit().encoder))


def test_collapse_is_noticed_once_and_the_best_model_stays(make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    train = trainer._train_batches

    def collapse(epoch: int, rows: Tensor, constraints) -> None:
        train(epoch, rows, constraints)
        with torch.no_grad():
            last = trainer.encoder[-1]
            last.weight.mul_(1e-6)
            last.bias.fill_(1.0)

    monkeypatch.setattr(trainer, "_train_batches", collapse)
    with pytest.warns(TrainingWarning) as caught:
        result = trainer.fit()
    messages = [str(w.message) for w in caught if w.category is TrainingWarning]
    assert "the embedding is collapsing" in messages[0]
    assert "training stops here" in messages[1]
    assert len(messages) == 2
    assert result.epochs == 1
    assert trainer._features(trainer.data.inputs).std(0).mean() > 1e-3
    assert result.best_epoch == 0


def test_an_embedding_of_a_single_point_scores_nothing(make_trainer) -> None:
    trainer = make_trainer()
    with torch.no_grad():
        trainer.encoder[-1].weight.zero_()
        trainer.encoder[-1].bias.fill_(1.0)
    assert trainer._score() == ((0.0,), {})


def test_divergence_is_said_and_the_run_keeps_its_best_model(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(run, lr=1e30)
    before = weights(trainer.encoder)
    with pytest.raises(DivergedError, match="smaller --lr"):
        trainer.fit()
    assert torch.equal(before, weights(trainer.encoder))
    stored, _ = run.read_tensors("model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in stored.values())


def test_a_full_disk_keeps_the_last_good_checkpoint(
    make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", {})
    make_trainer(run, epochs=2).fit()
    good = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    write = manifest.write_pieces

    def full(path: Path, pieces: Sequence[Piece]) -> None:
        if "checkpoint" in path.name:
            write(path, pieces[: len(pieces) // 2])
            raise OSError(28, "No space left on device")
        write(path, pieces)

    monkeypatch.setattr(manifest, "write_pieces", full)
    with pytest.raises(RunError, match=r"No space left on device.*--resume"):
        make_trainer(run, epochs=4).fit()
    monkeypatch.undo()
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == good
    assert not list((tmp_path / "run").glob(".*tmp"))
    assert make_trainer(run, epochs=4).fit().epochs == 4


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.full((90,), -1), "needs labels and there is none"),
        (torch.tensor([0] * 5 + [-1] * 85), "at least 2 classes, all 5 are of class 0"),
        (torch.arange(90) % 3, "learns from unlabelled examples and there is none"),
    ],
)
def test_data_that_the_method_cannot_use_is_refused(make_trainer, labels: Tensor, message: str) -> None:
    trainer = make_trainer()
    with pytest.raises(InputError, match=message):
        type(trainer)(trainer.encoder, trainer.method, TrainingData(trainer.data.inputs, labels), trainer.settings)


def test_a_run_that_stopped_by_collapse_stays_stopped(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(run)
    trainer.watch.collapsed = True
    trainer.watch.start = trainer._spread()
    trainer._keep(Best(0, (0.5,), trained_tensors(trainer)))
    write_checkpoint(trainer, run)
    assert make_trainer(run).fit().epochs == 0


def test_a_falling_score_is_said_once(make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    scores = iter([0.9, 0.7, 0.9, 0.7, 0.6])
    monkeypatch.setattr(trainer, "_score", lambda: ((next(scores),), {}))
    with pytest.warns(TrainingWarning, match=r"epoch 4: the embedding is degrading.*from 0\.900 to 0\.600") as caught:
        trainer.fit()
    assert len(caught) == 1


def test_many_violated_constraints_are_said(make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    shares = iter([0.01, 0.04, 0.2, 0.3])
    monkeypatch.setattr(trainer.method, "statistics", lambda *arguments: {"active_share": next(shares)})
    with pytest.warns(TrainingWarning, match=r"epoch 3: 20 % of the constraints are violated, up from 1\.0 %"):
        trainer.fit()


def test_spread_does_not_depend_on_the_scale_of_the_metric(make_trainer) -> None:
    trainer = make_trainer()
    before = trainer._spread()
    trainer.metric = Metric(20.0 * trainer.metric.factor)
    assert trainer._spread().mean_distance == pytest.approx(before.mean_distance)


def test_the_last_epoch_is_kept_when_nothing_selects(make_trainer) -> None:
    assert make_trainer(selection="last").fit().best_epoch == 4


@pytest.mark.parametrize("metric_every", ["batch", "epoch"])
def test_a_learning_rate_of_zero_trains_the_metric_alone(make_trainer, metric_every: str) -> None:
    trainer = make_trainer(lr=0.0, metric_every=metric_every, selection="last")
    before, metric = weights(trainer.encoder), trainer.metric
    result = trainer.fit()
    assert torch.equal(before, weights(result.encoder))
    assert not torch.equal(metric.factor, result.metric.factor)


def test_an_encoder_without_parameters_learns_the_metric_alone(make_trainer) -> None:
    trainer = make_trainer()
    for metric_every in ("batch", "epoch"):
        settings = TrainingSettings(epochs=2, lr=0.0, metric_every=metric_every, selection="last", batch_size=20)
        result = Trainer(nn.Identity(), trainer.method, trainer.data, settings).fit()
        assert result.metric.is_orthonormal()
    with pytest.raises(InputError, match="no parameters to train"):
        Trainer(nn.Identity(), trainer.method, trainer.data, TrainingSettings())
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module"):
        Trainer(lambda x: x, trainer.method, trainer.data, TrainingSettings())


def test_one_label_per_class_cannot_select(make_trainer) -> None:
    trainer = make_trainer()
    labels = torch.full((90,), -1)
    labels[:3] = torch.arange(3)
    with pytest.raises(InputError, match="needs a class with at least 2 labelled examples"):
        type(trainer)(trainer.encoder, trainer.method, TrainingData(trainer.data.inputs, labels), trainer.settings)


def test_an_encoder_that_is_dead_from_the_start_is_refused(make_trainer) -> None:
    trainer = make_trainer()
    with torch.no_grad():
        trainer.encoder[-1].weight.zero_()
    with pytest.raises(InputError, match="same embedding before any training"):
        type(trainer)(trainer.encoder, trainer.method, trainer.data, trainer.settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.full((90, 12), 2.0)}, "inputs are constant"),
        ({"inputs": torch.full((90, 12), float("nan"))}, "NaN or infinite values in 90 of 90 rows"),
        ({"inputs": torch.zeros(90, 12, dtype=torch.uint8)}, "must be floating-point"),
        ({"labels": torch.zeros(89, dtype=torch.long)}, r"shape \(90,\), got \(89,\)"),
        ({"labels": ["a"] * 90}, "labels must be integers, and some are text or missing"),
        ({"classes": torch.zeros(3, dtype=torch.long)}, "classes must have one entry per example"),
        ({"validation_inputs": torch.zeros(4, 12)}, "go together"),
        ({"validation_inputs": torch.zeros(4, 12), "validation_labels": [1, 1, -1, -1]}, "at least 2 classes"),
    ],
)
def test_bad_training_data_is_named(make_trainer, changes: dict, message: str) -> None:
    data = make_trainer().data
    with pytest.raises(InputError, match=message):
        TrainingData(**({"inputs": data.inputs, "labels": data.labels} | changes))


def test_numpy_arrays_will_do(make_trainer) -> None:
    data = make_trainer().data
    again = TrainingData(data.inputs.double().numpy(), data.labels.numpy())
    assert torch.equal(again.inputs, data.inputs)
    assert torch.equal(again.unlabelled, data.unlabelled)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_can_be_rehearsed_without_a_trace(make_trainer, kind) -> None:
    """What a GPU does before it records a step, on the CPU."""
    trainer = make_trainer()
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(trainer.encoder.parameters(), lr=0.1, weight_decay=0.1, **options)
    step = TrainingStep(trainer.encoder, trainer.method, optimizer, trainer.data.inputs, update_metric=True)
    before = weights(trainer.encoder)
    create_state(optimizer)
    assert torch.equal(before, weights(trainer.encoder))
    constraints = trainer.method.constraints(trainer._features(trainer.data.inputs), trainer.data.labels)
    batch = next(iter(constraints.minibatches(20, torch.Generator().manual_seed(0))))
    step._batch_type = type(batch)
    graphed = GraphedFunction(step._on_tensors, step._changed_by_a_step)
    graphed.rehearse(trainer.metric.factor, step.views(step.inputs[batch.nodes], 1)[0], batch.nodes, batch.index)
    assert torch.equal(before, weights(trainer.encoder))
    assert all((tensor == 0).all() for values in optimizer.state.values() for tensor in values.values())
    step(trainer.metric, step.views(step.inputs[batch.nodes], 1)[0], batch)
    assert not torch.equal(before, weights(trainer.encoder))


def test_selection_on_validation_needs_validation_data(make_trainer) -> None:
    with pytest.raises(InputError, match="needs withheld validation data"):
        make_trainer(selection="validation")


def test_partitions_cover_the_unlabelled_data_before_any_returns() -> None:
    generator = torch.Generator().manual_seed(0)
    schedule = PartitionSchedule(torch.arange(100, 130), 10, 2, generator)
    rows = [schedule.for_epoch(epoch) for epoch in range(1, 7)]
    assert torch.equal(rows[0], rows[1])
    assert sorted(torch.cat(rows[::2]).tolist()) == list(range(100, 130))
    again = PartitionSchedule(torch.arange(100, 130), 10, 2, torch.Generator().manual_seed(9))
    again.restore(schedule.state())
    again._generator.set_state(generator.get_state())
    assert all(torch.equal(schedule.for_epoch(e), again.for_epoch(e)) for e in range(7, 13))


def test_labels_score_is_leave_one_out_recall_then_r_precision() -> None:
    points = torch.tensor([[0.0], [0.1], [0.25], [5.0], [5.1], [0.3]])
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    score, named = labels_score(points, labels)
    hits = [1, 1, 0, 1, 1, 0]  # the nearest other of each; 0.25 and 0.3 are each other's
    assert score[0] == pytest.approx(sum(hits) / 6)
    precision = [2 / 2, 2 / 2, 1 / 2, 2 / 2, 2 / 2, 0 / 2]  # the two nearest others of each
    assert score[1] == pytest.approx(sum(precision) / 6)
    assert named == {"recall@1": score[0], "r_precision": score[1]}


def test_a_class_with_one_label_asks_nothing_of_the_score() -> None:
    points = torch.tensor([[0.0], [0.1], [9.0]])
    assert labels_score(points, torch.tensor([0, 0, 1]))[0] == (1.0, 1.0)


def test_validation_score_is_the_mean_of_nmi_and_recall(make_clusters) -> None:
    points, labels = make_clusters(0, 60, 8, 3)
    score, scores = validation_score(points, labels)
    assert score == ((scores["nmi"] + scores["recall@1"]) / 2,)


def test_history_is_plain_json(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    make_trainer(run).fit()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5
    assert json.loads(lines[0])["epoch"] == 0
