"""One suite for every method of the registry."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.objectives import objective
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.methods import (
    METHODS,
    LearnsMetric,
    Method,
    PredictsClasses,
    build_method,
    is_taught,
    method_names,
)
from semimetric.methods.baseline import Baseline
from semimetric.methods.pairs import PairMethod
from semimetric.training import Run, Silent, Trainer, TrainingData, TrainingSettings
from semimetric.training.average import RunningAverage
from semimetric.training.optimizer import optimizer_tensors
from semimetric.training.step import TrainingStep

WIDTH = 16
HOLDS_CONSTANT = ("stml",)
"""Methods whose loss holds a function of the features constant; their own tests compare its gradient."""
FORMS = {
    "consensus by step": {"naming": "step"},
    "consensus without gradients of weak views": {"naming": "step", "projection": 8, "stop_gradient": True},
    "consensus with context": {"context": 1.0, "neighbours": 3},
    "consensus in a whitened space": {"metric": "within"},
    "consensus with a whitened result": {"metric": "whitened"},
}
"""Settings that change what a step does."""


@pytest.fixture
def working_set(make_clusters):
    points, classes = make_clusters(0, 80, WIDTH, 4)
    labels = torch.full((80,), -1)
    labels[:16] = classes[:16]
    return points, labels, classes


@pytest.fixture(params=[*method_names(), *FORMS])
def method(request: pytest.FixtureRequest, working_set) -> Method:
    """Every method, and forms of some, made ready for the working set."""
    name = request.param.split()[0]
    kind = METHODS[name]
    fields = {field.name for field in dataclasses.fields(kind.Settings)}
    small = {"k": 6, "most_pairs": 400} | ({} if issubclass(kind, Baseline | PairMethod) else {"components": 8})
    values = {key: value for key, value in small.items() if key in fields} | FORMS.get(request.param, {})
    method = build_method(name, **values)
    points, labels, _ = working_set
    method.on_fit_begin(inputs_of(method, points), labels, WIDTH, torch.Generator().manual_seed(0))
    return method


def inputs_of(method: Method, points: Tensor) -> Tensor:
    """The points, as images of 4 x 4 where the method knows nothing else."""
    return points.reshape(-1, 1, 4, 4) if method.needs.images else points


def settings_for(method: Method, **values) -> TrainingSettings:
    """Settings of training that keep the last model, and an average where the method learns from it."""
    needed = {"average": 0.9} if is_taught(method) else {}
    return TrainingSettings(selection="last", **needed | values)


def linear_encoder() -> nn.Sequential:
    """Of vectors and of images of 4 x 4."""
    return nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, WIDTH))


def view_features(method: Method, points: Tensor, constraints) -> Tensor:
    """What ``loss`` is given: unit features of the views of the nodes, here of an encoder that changes nothing."""
    torch.manual_seed(0)
    return unit_features(method.views(inputs_of(method, points)[constraints.nodes]).flatten(1))


def test_it_says_what_it_is(method: Method) -> None:
    assert METHODS[method.name] is type(method)
    assert method.summary
    assert method.reference
    needed = method.needs.words(method.labels_optional)
    assert needed
    assert ("labels (optional)" in needed) == method.labels_optional


def test_settings_carry_help_and_defaults(method: Method) -> None:
    for field in dataclasses.fields(method.Settings):
        assert field.metadata["help"].endswith(".")
        assert field.default is not dataclasses.MISSING


def test_views_are_as_many_for_each_example_and_repeat_with_the_seed(method: Method, working_set) -> None:
    points, labels, _ = working_set
    constraints = method.constraints(points, labels)
    views, again = (view_features(method, points, constraints) for _ in range(2))
    of_one = len(method.views(inputs_of(method, points)[:1]))
    assert len(views) == of_one * len(constraints.nodes)
    assert views.shape[1] == WIDTH
    assert torch.equal(views, again)
    inputs = inputs_of(method, points)
    assert torch.equal(method.views(inputs), inputs) != method.needs.views


def test_what_it_prepares_depends_on_the_generator_alone(method: Method, working_set) -> None:
    points, labels, _ = working_set
    kept = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    method.on_fit_begin(inputs_of(method, points), labels, WIDTH, torch.Generator().manual_seed(0))
    assert torch.equal(before, torch.get_rng_state())
    assert kept.keys() == method.state_dict().keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in method.state_dict().items())


def test_posteriors_are_of_the_working_set_and_rows_sum_to_one(method: Method, working_set) -> None:
    if not isinstance(method, PredictsClasses):
        pytest.skip("the method predicts no classes")
    points, labels, _ = working_set
    found = method.posteriors(method.constraints(points, labels))
    assert torch.equal(found.classes, torch.arange(4))
    assert torch.allclose(found.shares.sum(1), torch.ones(80).double())
    assert 0 <= float(found.confidence.min()) <= float(found.confidence.max()) <= 1


def test_a_trainer_has_posteriors_of_every_example_where_its_method_names_classes(method: Method, working_set) -> None:
    points, labels, _ = working_set
    settings = settings_for(method, partition_size=32)
    trainer = Trainer(linear_encoder(), method, TrainingData(inputs_of(method, points), labels), settings)
    found = trainer.posteriors()
    assert (found is not None) == isinstance(method, PredictsClasses)
    if found is not None:
        assert torch.equal(found.classes, torch.arange(4))
        assert found.shares.shape == (80, 4)
        assert torch.equal(found.shares[:16], nn.functional.one_hot(labels[:16], 4).double())
        assert torch.equal(found.confidence[:16], torch.ones(16).double())


def test_minibatches_are_full_and_refer_to_their_nodes(method: Method, working_set) -> None:
    points, labels, _ = working_set
    constraints = method.constraints(points, labels)
    batches = list(constraints.minibatches(10, torch.Generator().manual_seed(0)))
    again = list(constraints.minibatches(10, torch.Generator().manual_seed(0)))
    assert len(batches) == len(constraints) // 10
    for batch, same in zip(batches, again, strict=True):
        assert len(batch) == 10
        assert torch.equal(batch.nodes, same.nodes)
        assert 0 <= int(batch.nodes.min()) <= int(batch.nodes.max()) < len(points)


def test_constraints_are_deterministic_and_know_no_gradient(method: Method, working_set) -> None:
    points, labels, classes = working_set
    first, second = method.constraints(points, labels), method.constraints(points, labels)
    assert torch.equal(first.nodes, second.nodes)
    assert first.quality(classes) == second.quality(classes)
    assert all(0.0 <= share <= 1.0 for share in first.quality(classes).values())


def test_metric_step_lowers_its_objective(method: Method, working_set) -> None:
    if not isinstance(method, LearnsMetric):
        pytest.skip("the method trains the encoder alone")
    points, labels, _ = working_set
    constraints = method.constraints(points, labels)
    metric = method.initial_metric(WIDTH, torch.Generator().manual_seed(0))
    features = points[constraints.nodes].double()
    updated = method.update_metric(metric, features, constraints)
    before = objective(method, metric, features, constraints)
    after = objective(method, updated, features, constraints)
    assert after < before
    again = method.update_metric(updated, features, constraints)
    assert objective(method, again, features, constraints) <= after + 1e-9 * abs(after)


def test_loss_reaches_the_features_and_not_the_metric(method: Method, working_set) -> None:
    points, labels, _ = working_set
    constraints = method.constraints(points, labels)
    metric = method.initial_metric(WIDTH, torch.Generator().manual_seed(0))
    features = view_features(method, points, constraints).requires_grad_()
    method.loss(metric, features, constraints).backward()
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()
    assert features.grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in method.parameters())
    if isinstance(method, LearnsMetric):
        assert not method.update_metric(metric, features.detach(), constraints).factor.requires_grad


def test_loss_gradient_equals_finite_differences(method: Method, working_set) -> None:
    if method.name in HOLDS_CONSTANT:
        pytest.skip("a part of the loss is a constant to the gradient")
    points, labels, _ = working_set
    constraints = next(iter(method.constraints(points, labels).minibatches(6, torch.Generator().manual_seed(1))))
    metric = method.initial_metric(WIDTH, torch.Generator().manual_seed(0))
    views = view_features(method.double().eval(), points, constraints)
    for seed in range(3):
        noise = 0.1 * torch.randn(len(views), WIDTH, generator=torch.Generator().manual_seed(seed))
        features = (views + noise).double().requires_grad_()
        assert torch.autograd.gradcheck(lambda z: method.loss(metric, z, constraints), (features,), atol=1e-6)


def test_statistics_are_finite_numbers(method: Method, working_set) -> None:
    points, labels, _ = working_set
    metric = method.initial_metric(WIDTH, torch.Generator().manual_seed(0))
    found = method.statistics(metric, points, method.constraints(points, labels))
    assert all(isinstance(value, float) and value == value for value in found.values())


def steps_of(trainer: Trainer) -> int:
    """Steps of an epoch of one pass, by the constraints of the first."""
    rows = trainer._working_set(1)
    trainer.method.on_epoch_begin(1)
    constraints = trainer.method.constraints(trainer._features(trainer.data.inputs[rows]), trainer.data.labels[rows])
    return len(constraints) // min(trainer.settings.batch_size, len(constraints))


def lively(method: Method) -> float:
    """A learning rate that moves the weights and undoes nothing: small for losses that are sums, as in the paper."""
    return 1e-2 if "optimizer" in method.training_defaults else 1e-5


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_a_hundred_steps_stay_finite_and_repeat(method: Method, make_clusters) -> None:
    points, classes = make_clusters(1, 120, WIDTH, 4)
    data = TrainingData(inputs_of(method, points), torch.where(torch.arange(120) < 20, classes, -1))

    def trainer(passes: int) -> Trainer:
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        every = "epoch" if isinstance(method, LearnsMetric) and method.metric_after_steps else "batch"
        settings = settings_for(method, epochs=2, passes=passes, batch_size=12, lr=lively(method), metric_every=every)
        return Trainer(encoder, build_method(method.name, **dataclasses.asdict(method.settings)), data, settings)

    passes = -(-50 // steps_of(trainer(1)))
    seen: list[int] = []

    def train() -> tuple[Tensor, Tensor]:
        running = trainer(passes)
        running.progress = Counting(seen)
        start = running.encoder[1].weight.detach().clone()
        running.fit()
        return running._embed(torch.arange(len(running.data.inputs))), running.encoder[1].weight.detach() - start

    (first, moved), (second, _) = train(), train()
    assert len(seen) >= 2 * 100
    assert torch.isfinite(first).all()
    assert float(moved.abs().max()) > 1e-4
    assert torch.equal(first, second)


class Counting(Silent):
    """Counts steps."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def batch(self, epoch: int, done: int, total: int) -> None:
        self.seen.append(done)


class StopAfter(Silent):
    """Presses Ctrl-C as soon as an epoch is written down."""

    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, record: dict) -> None:
        if record["epoch"] == self.last:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_a_run_that_stopped_goes_on_as_if_it_had_not(method: Method, make_clusters, tmp_path) -> None:
    points, classes = make_clusters(2, 90, WIDTH, 3)
    labels = torch.where(torch.arange(90) < 15, classes, -1)

    def trainer(run: Run) -> Trainer:
        torch.manual_seed(0)
        encoder = linear_encoder()
        again = build_method(method.name, **dataclasses.asdict(method.settings) | views_on(method))
        settings = TrainingSettings(
            epochs=3,
            epochs_per_partition=1,
            partition_size=40,
            passes=2,
            batch_size=5,
            optimizer="adam",
            lr=1e-3,
            average=0.9,
            selection="last",
        )
        return Trainer(encoder, again, TrainingData(inputs_of(method, points), labels), settings, run=run)

    first = trainer(Run.create(tmp_path / "whole", {}))
    before = torch.get_rng_state()
    whole = first.fit()
    assert first.method.draws is not None, "fits of this method take turns in threads"
    assert torch.equal(torch.get_rng_state(), before)
    parts = Run.create(tmp_path / "parts", {})
    stopped = trainer(parts)
    stopped.progress = StopAfter(1)
    assert stopped.fit().interrupted
    second = trainer(parts)
    resumed = second.fit()
    assert torch.equal(resumed.metric.factor, whole.metric.factor)
    assert same_tensors(resumed.encoder.state_dict(), whole.encoder.state_dict())
    assert same_tensors(second.method.state_dict(), first.method.state_dict())
    assert same_tensors(optimizer_tensors(second.optimizer), optimizer_tensors(first.optimizer))
    assert resumed.epochs == whole.epochs == 3
    assert resumed.guards == whole.guards


def views_on(method: Method) -> dict[str, str]:
    """Views for a method that makes none by default, so that its steps draw random numbers too."""
    return {"augmentation": "objects"} if getattr(method.settings, "augmentation", "") == "none" else {}


def same_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("metric_every", ["epoch", "batch"])
def test_a_gpu_trains_what_the_cpu_trains(method: Method, metric_every: str, make_clusters) -> None:
    if metric_every == "batch" and isinstance(method, LearnsMetric) and method.metric_after_steps:
        pytest.skip("the method learns its metric after the steps of an epoch alone")
    points, classes = make_clusters(3, 90, WIDTH, 3)
    labels = torch.where(torch.arange(90) < 15, classes, -1)
    settings = settings_for(method, epochs=2, batch_size=12, lr=1e-6, metric_every=metric_every)

    def train(device: str):
        torch.manual_seed(0)
        again = build_method(method.name, **dataclasses.asdict(method.settings))
        data = TrainingData(inputs_of(method, points), labels)
        return Trainer(linear_encoder(), again, data, settings, device=device).fit()

    there, here = train("cuda"), train("cpu")
    assert there.metric.factor.is_cuda
    assert there.metric.factor.shape == here.metric.factor.shape
    assert torch.isfinite(there.metric.factor).all()
    assert set(there.guards) == set(here.guards)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_recorded_step_trains_what_a_plain_one_trains(method: Method, precision: str, make_clusters) -> None:
    if not method.capturable_loss:
        pytest.skip("the method does not say that its steps can be recorded")
    points, classes = make_clusters(3, 90, WIDTH, 3)
    data = TrainingData(inputs_of(method, points), torch.where(torch.arange(90) < 15, classes, -1))
    settings = TrainingSettings(
        epochs=3, passes=2, batch_size=5, lr=lively(method), average=0.9, precision=precision, selection="last"
    )

    def train(recorded: bool) -> Trainer:
        torch.manual_seed(0)
        own = dataclasses.asdict(method.settings) | ({"augmentation": "none"} if method.needs.views else {})
        trainer = Trainer(linear_encoder(), build_method(method.name, **own), data, settings, device="cuda")
        if not recorded:
            trainer.step._graphed = None
        trainer.fit()
        return trainer

    there, here = train(True), train(False)
    for part in ("encoder", "method"):
        expected = getattr(here, part).state_dict()
        for name, tensor in getattr(there, part).state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=2e-2, atol=2e-3, msg=f"{part}.{name}")


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_consensus_trains_averages_in_half_precision(make_clusters, device: str) -> None:
    """All that a recorded step can hold: batch normalisation, a changing learning rate, autocast and averages."""
    points, classes = make_clusters(3, 90, WIDTH, 3)
    data = TrainingData(points, torch.where(torch.arange(90) < 15, classes, -1))
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(WIDTH, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, WIDTH))
    settings = TrainingSettings(
        epochs=2,
        batch_size=12,
        optimizer="adamw",
        lr=1e-2,
        lr_schedule="cosine",
        average=0.9,
        precision="bfloat16",
        selection="last",
    )
    trainer = Trainer(encoder, build_method("consensus", k=6), data, settings, device=device)
    trainer.fit()
    parts = (trainer.encoder, trainer.method)
    assert all(bool(torch.isfinite(tensor).all()) for part in parts for tensor in part.state_dict().values())
    assert all(tensor.device.type == device for part in parts for tensor in part.state_dict().values())
    counts = (trainer.average.steps, trainer.method.steps, encoder[1].num_batches_tracked)
    assert [int(count) for count in counts] == [2 * (90 // 12)] * 3  # trials before a recording do not count
    assert float(trainer.optimizer.param_groups[0]["lr"]) == pytest.approx(1e-2 / 2)
    averages = [parameter.detach().clone() for part in parts for parameter in part.parameters()]
    trainer.average.swap()
    last = [parameter.detach() for part in parts for parameter in part.parameters()]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in last)
    assert all(not torch.equal(a, b) for a, b in zip(averages, last, strict=True))


def test_a_capturable_step_reads_no_value_on_the_host(method: Method, working_set) -> None:
    """On torch's meta device tensors have shapes and no values, so a step that asks for a value raises."""
    if not method.capturable_loss:
        pytest.skip("the method does not say that its steps can be recorded")
    points, labels, _ = working_set
    batch = next(iter(method.constraints(points, labels).minibatches(10, torch.Generator().manual_seed(0))))
    abstract = type(batch)(*(getattr(batch, field.name).to("meta") for field in dataclasses.fields(batch)))
    encoder = linear_encoder().to("meta")
    method.to("meta")
    optimizer = torch.optim.SGD([*encoder.parameters(), *method.parameters()], lr=0.1, momentum=0.9)
    inputs = inputs_of(method, points).to("meta")
    update_metric = isinstance(method, LearnsMetric) and method.capturable_metric
    average = RunningAverage([encoder], 0.9, [method]) if is_taught(method) else None
    step = TrainingStep(encoder, method, optimizer, inputs, update_metric, average=average)
    metric = method.initial_metric(WIDTH, torch.Generator().manual_seed(0)).to("meta")
    updated = step(metric, step.views(step.inputs[batch.nodes.to("meta")], 1)[0], abstract)
    assert updated.factor.shape == metric.factor.shape
    assert all(parameter.grad is not None for parameter in (*encoder.parameters(), *method.parameters()))


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_a_blank_example_does_not_undo_the_network(method: Method, make_clusters) -> None:
    """Without biases its output is zero, which has no direction: its gradient must not be that of a tiny vector."""
    points, classes = make_clusters(5, 60, WIDTH, 3)
    labels = torch.where(torch.arange(60) < 15, classes, -1)
    points[[0, 40]] = 0.0
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 32, bias=False), nn.ReLU(), nn.Linear(32, WIDTH, bias=False))
    settings = settings_for(method, epochs=2, batch_size=10, lr=lively(method))
    again = build_method(method.name, **dataclasses.asdict(method.settings))
    Trainer(encoder, again, TrainingData(inputs_of(method, points), labels), settings).fit()
    assert all(float(parameter.detach().abs().max()) < 10 for parameter in encoder.parameters())


def test_a_frozen_encoder_is_refused_where_nothing_else_learns(method: Method, working_set) -> None:
    points, labels, _ = working_set
    data, settings = TrainingData(inputs_of(method, points), labels), settings_for(method, lr=0.0)
    if isinstance(method, LearnsMetric):
        Trainer(linear_encoder(), method, data, settings)
        return
    with pytest.raises(InputError, match=r"lr is 0.*Set lr above 0, or use a method that learns a metric"):
        Trainer(linear_encoder(), method, data, settings)


def test_a_method_that_learns_from_the_average_is_refused_without_one(method: Method, working_set) -> None:
    points, labels, _ = working_set
    data, settings = TrainingData(inputs_of(method, points), labels), TrainingSettings(lr=1e-3, selection="last")
    if not is_taught(method):
        assert Trainer(linear_encoder(), method, data, settings).average is None
        return
    with pytest.raises(InputError, match=r"learns from the running average .* average is 0.*such as 0.99"):
        Trainer(linear_encoder(), method, data, settings)


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_it_sees_only_what_it_needs(method: Method, make_clusters) -> None:
    """Other labels change nothing for a method without labels, other unlabelled examples nothing for one without them.

    Where it does need them they change what it learns, or the test would say nothing.
    """
    points, classes = make_clusters(4, 90, WIDTH, 3)
    labels = torch.where(torch.arange(90) < 15, classes, -1)
    settings = settings_for(method, epochs=2, batch_size=12, lr=1e-2)

    def train(points: Tensor, labels: Tensor) -> Tensor:
        torch.manual_seed(0)
        again = build_method(method.name, **dataclasses.asdict(method.settings))
        data = TrainingData(inputs_of(method, points), labels)
        encoder = Trainer(linear_encoder(), again, data, settings).fit().encoder
        return encoder[1].weight.detach()

    learned = train(points, labels)
    moved = torch.where(torch.arange(90) < 30, torch.arange(90) % 3, -1)
    assert torch.equal(learned, train(points, moved)) != method.needs.labels
    noisy = torch.where((labels < 0)[:, None], points.roll(1, 1), points)
    assert torch.equal(learned, train(noisy, labels)) != method.needs.unlabelled


def test_wider_metric_than_features_is_refused(method: Method) -> None:
    if not hasattr(method.settings, "components"):
        pytest.skip("the method has no width of its own")
    wide = build_method(method.name, components=WIDTH + 1)
    with pytest.raises(InputError, match=f"components must be at most the encoder's output width \\({WIDTH}\\)"):
        wide.initial_metric(WIDTH, torch.Generator())
