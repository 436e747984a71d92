"""``consensus`` with a metric for the result alone: training on the features as they are, then whitening."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command import semimetric
from helpers.draws import draws
from helpers.noisy_classes import KEPT, WIDTH, noisy_classes
from helpers.objectives import objective
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_wine
from torch import Tensor

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.core.files import read_tensors
from semimetric.data.stored import some_of
from semimetric.encoders import unit_features
from semimetric.evaluation import measure_spread, recall_at_k
from semimetric.methods import build_method
from semimetric.methods.agreement import Agreement
from semimetric.methods.consensus import Consensus
from semimetric.metric import Metric, within_class_whitening
from semimetric.training import Run, Silent, Trainer, TrainingData, TrainingSettings


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prepared(points: Tensor, labels: Tensor, **values: Any) -> Consensus:
    method = build_method("consensus", **({"k": 6, "metric": "whitened"} | values))
    method.on_fit_begin(points, labels, points.shape[1], seeded())
    return method


def trainer_of(run: Run | None = None, progress: Silent | None = None, **values: Any) -> Trainer:
    """A matrix on noisy features, trained for three epochs."""
    points, labels, _ = noisy_classes()
    torch.manual_seed(0)
    settings = TrainingSettings(
        epochs=3, batch_size=60, optimizer="adamw", lr=1e-2, average=0.9, selection="last", passes=2
    )
    method = build_method("consensus", **({"k": 6, "metric": "whitened"} | values))
    data = TrainingData(points, labels)
    return Trainer(torch.nn.Linear(WIDTH, WIDTH), method, data, settings, run=run, progress=progress)


def squared_within(points: Tensor, found: Agreement) -> Tensor:
    """The weighted covariance about class means, term by term."""
    total = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for name in found.targets.unique().tolist():
        mine = [(points[row].double(), float(found.weights[row])) for row in (found.targets == name).nonzero()[:, 0]]
        share = sum(weight for _, weight in mine)
        mean = sum(weight * point for point, weight in mine) / share if share else torch.zeros(WIDTH)
        for point, weight in mine:
            total += weight * torch.outer(point - mean, point - mean)
    return total / found.weights.sum()


@given(st.integers(0, 1000), st.sampled_from([0.03, 0.3, 3.0]))
@draws(5)
def test_distances_are_those_of_the_inverse_covariance(seed: int, shrinkage: float) -> None:
    points, labels, _ = noisy_classes(per_class=8, seed=seed)
    method = prepared(points, labels, shrinkage=shrinkage)
    found = method.constraints(points, labels)
    matrix = method.update_metric(Metric.identity(WIDTH), points, found).matrix
    within = squared_within(points, found)
    within.diagonal().add_(shrinkage * within.trace() / WIDTH)
    inverse = torch.linalg.inv(within)
    centred = points.double() - points.double().mean(0)
    scale = centred.square().sum() / ((centred @ inverse) * centred).sum()
    torch.testing.assert_close(matrix, scale * inverse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("values", [{}, {"components": KEPT}, {"naming": "step"}, {"context": 0.5}, {"projection": 5}])
def test_losses_act_on_the_features_whatever_the_metric(values: dict[str, Any]) -> None:
    points, labels, _ = noisy_classes()
    losses = {}
    for kind in ("whitened", "principal"):
        method = prepared(points, labels, metric=kind, **values).eval()
        found = method.constraints(points, labels)
        batch = next(iter(found.minibatches(40, seeded())))
        views = unit_features(torch.randn(80, WIDTH, generator=seeded(1)))
        batch = method.teach(views.flip(1), batch) if method.taught else batch
        whitened = within_class_whitening(points, found.targets, found.weights, WIDTH, 0.1)
        losses[kind] = [float(method.loss(metric, views, batch).detach()) for metric in (whitened, Metric.identity(20))]
    assert losses["whitened"][0] == losses["whitened"][1] == losses["principal"][1]
    if not values.get("projection"):
        assert losses["principal"][0] != pytest.approx(losses["principal"][1], rel=1e-3)


def test_training_is_the_same_as_without_it() -> None:
    plain, whitened = trainer_of(metric="principal").fit(), trainer_of().fit()
    assert torch.equal(plain.encoder.weight, whitened.encoder.weight)
    assert torch.equal(plain.metric.factor, torch.eye(WIDTH).double())
    assert not torch.allclose(whitened.metric.factor, plain.metric.factor)


@pytest.mark.parametrize("components", [0, KEPT])
def test_the_result_is_whitened_by_the_trained_features(components: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(shrinkage=0.5, components=components)
    named: list[tuple[Tensor, Agreement]] = []
    original, working_set = trainer.method.constraints, trainer._working_set
    rows: list[Tensor] = []

    def constraints(features: Tensor, labels: Tensor) -> Agreement:
        named.append((features, original(features, labels)))
        return named[-1][1]

    def drawn(epoch: int) -> Tensor:
        rows.append(working_set(epoch))
        return rows[-1]

    monkeypatch.setattr(trainer.method, "constraints", constraints)
    monkeypatch.setattr(trainer, "_working_set", drawn)
    result = trainer.fit()
    assert len(named) == 3
    before, found = named[-1]
    features = trainer._features(some_of(trainer.data.inputs, rows[-1]))
    expected = within_class_whitening(features, found.targets, found.weights, components or WIDTH, 0.5)
    torch.testing.assert_close(result.metric.factor, expected.factor)
    stale = within_class_whitening(before, found.targets, found.weights, components or WIDTH, 0.5)
    assert not torch.allclose(result.metric.factor, stale.factor)


def test_a_metric_of_one_batch_is_refused() -> None:
    points, labels, _ = noisy_classes()
    settings = TrainingSettings(epochs=1, batch_size=60, lr=1e-3, selection="last", metric_every="batch")
    encoder, data = torch.nn.Linear(WIDTH, WIDTH), TrainingData(points, labels)
    with pytest.raises(InputError, match=r"metric_every is 'batch'.*'consensus'.*last batch.*metric_every to 'epoch'"):
        Trainer(encoder, build_method("consensus", k=6, metric="whitened"), data, settings)
    Trainer(encoder, build_method("consensus", k=6, metric="within"), data, settings)


def test_it_lessens_what_varies_within_classes() -> None:
    points, labels, classes = noisy_classes()
    method = prepared(points, labels, shrinkage=0.3)
    found, start = method.constraints(points, labels), Metric.identity(WIDTH)
    metric = method.update_metric(start, points, found)
    assert objective(method, metric, points, found) < objective(method, start, points, found)
    assert recall_at_k(metric.transform(points), classes, (1,))[1] > recall_at_k(points, classes, (1,))[1]


def test_a_class_that_counts_for_nothing_does_not_matter_and_no_class_leaves_euclidean_distance() -> None:
    points, labels, _ = noisy_classes()
    method = prepared(points, labels)
    found = method.constraints(points, labels)
    found.weights[found.targets == 2] = 0.0
    metric = method.update_metric(Metric.identity(WIDTH), points, found)
    moved = points.clone()
    moved[found.targets == 2] = moved[found.targets == 2].flip(0)  # its own covariance has no say, its points stay
    torch.testing.assert_close(metric.matrix, method.update_metric(metric, moved, found).matrix)
    found.weights.zero_()
    assert method.update_metric(metric, points, found).is_orthonormal()


def test_collapse_is_watched_in_the_features() -> None:
    told: list[str] = []
    records: list[dict[str, Any]] = []

    class Listen(Silent):
        def warn(self, message: str) -> None:
            told.append(message)

        def epoch(self, record: dict[str, Any]) -> None:
            records.append(record)

    trainer = trainer_of(progress=Listen(), shrinkage=1e-6)
    trainer.fit()
    spread = measure_spread(trainer._features(trainer.data.inputs))
    assert records[-1]["mean_distance"] == pytest.approx(spread.mean_distance, rel=1e-5)
    assert not told


class StopAfterTwo(Silent):
    """Presses Ctrl-C when the second epoch is written down."""

    def epoch(self, record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt


def test_a_run_that_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    whole = trainer_of(Run.create(tmp_path / "whole", {})).fit()
    parts = Run.create(tmp_path / "parts", {})
    assert trainer_of(parts, StopAfterTwo()).fit().interrupted
    resumed = trainer_of(parts).fit()
    assert torch.equal(resumed.metric.factor, whole.metric.factor)
    assert torch.equal(Metric(parts.read_tensors("model.safetensors")[0]["metric.factor"]).factor, whole.metric.factor)


def test_commands_answer_from_such_a_run(tmp_path: Path) -> None:
    features, classes = load_wine(return_X_y=True)
    lines = ["id," + ",".join(f"x{column}" for column in range(13)) + ",label"]
    for number, (row, name) in enumerate(zip(features, classes, strict=True)):
        label = f"wine {name}" if number % 6 == 0 else ""
        lines.append(f"{number}," + ",".join(map(str, row)) + f",{label}")
    table, run = tmp_path / "wine.csv", tmp_path / "run"
    table.write_text("\n".join(lines) + "\n")
    asked = ("--metric", "whitened", "--shrinkage", 0.3, "--epochs", 8, "--device", "cpu")
    assert semimetric("fit", table, "-o", run, "--label-column", "label", "--id-column", "id", *asked).code == 0
    for words in (
        ("predict", run, table, "--json"),
        ("search", run, table, "-k", 2),
        ("suggest", run, "-n", 3),
        ("evaluate", run, table, "--label-column", "label", "--id-column", "id"),
        ("fit", table, "--from", run, "-o", tmp_path / "again", "--label-column", "label", "--id-column", "id"),
    ):
        done = semimetric(*words)
        assert done.code == 0, (words, done.err)
    metrics = [read_tensors(path / "model.safetensors")[0]["metric.factor"] for path in (run, tmp_path / "again")]
    assert not any(Metric(factor).is_orthonormal() for factor in metrics)


def test_an_estimator_is_no_worse_with_it() -> None:
    features, classes = load_wine(return_X_y=True)
    labels = torch.where(torch.arange(len(classes)) % 12 == 0, torch.tensor(classes), -1).numpy()
    right = {}
    for kind in ("principal", "whitened"):
        fitted = sm.SemiMetric(random_state=0, epochs=10, settings={"metric": kind}).fit(features, labels)
        right[kind] = fitted.score(features, classes)
    assert right["whitened"] >= right["principal"] - 0.02
