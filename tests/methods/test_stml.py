from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command import semimetric
from torch import Tensor, nn
from torch.nn.functional import normalize

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.encoders import encode
from semimetric.losses import contextual_targets, neighbourhood_divergence, relaxed_contrastive_loss
from semimetric.methods import build_method
from semimetric.methods.stml import STML, Neighbourhoods
from semimetric.metric import Metric
from semimetric.training import Run, Silent, Trainer, TrainingData, TrainingSettings

WIDTH = 8
SETTINGS = {"epochs": 2, "batch_size": 20, "optimizer": "adamw", "lr": 1e-2, "average": 0.9, "selection": "last"}

pytestmark = pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")


def prepared(points: Tensor, **settings) -> STML:
    method = build_method("stml", **settings)
    method.on_fit_begin(points, torch.full((len(points),), -1), points.shape[1], torch.Generator().manual_seed(0))
    return method


def network(width: int = 12) -> nn.Sequential:
    """With batch normalisation, which a teacher must not disturb."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH))


def make_trainer(make_clusters, run: Run | None = None, labels: Tensor | None = None, **changes) -> Trainer:
    points, _ = make_clusters(0, 60, 12, 3)
    data = TrainingData(points, torch.full((60,), -1) if labels is None else labels)
    own = {name: changes.pop(name) for name in ("components", "augmentation", "metric") if name in changes}
    method = build_method("stml", **{"k": 4, "components": 3} | own)
    return Trainer(network(), method, data, TrainingSettings(**SETTINGS | changes), run=run)


class Noting(Silent):
    """Keeps the views of every step, what the teacher says of them, and the weights averaged by hand until then."""

    def __init__(self, trainer: Trainer) -> None:
        self.kept: list[tuple[Tensor, Tensor, nn.Module, Tensor]] = []
        self.trainer, self.updates = trainer, 0
        self.encoder, self.method = copy.deepcopy(trainer.encoder), copy.deepcopy(trainer.method)
        self.call, trainer.step._step = trainer.step._step, self.note
        self.teach, trainer.method.teach = trainer.method.teach, self.note_outputs

    def note(self, metric, views: Tensor, batch: Neighbourhoods):
        self.views = views
        return self.call(metric, views, batch)

    def note_outputs(self, features: Tensor, batch: Neighbourhoods) -> Neighbourhoods:
        taught = self.teach(features, batch)
        self.kept.append((self.views, taught.outputs, copy.deepcopy(self.encoder), self.method.g.weight.clone()))
        return taught

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Average the weights after a step by hand."""
        self.updates += 1
        keep = min(0.9, (1 + self.updates) / (10 + self.updates))
        for mine, part in ((self.encoder, self.trainer.encoder), (self.method, self.trainer.method)):
            theirs = part.state_dict()
            for name, tensor in mine.state_dict().items():
                if tensor.is_floating_point():
                    tensor.mul_(keep).add_((1 - keep) * theirs[name])


def test_the_teacher_is_the_average_of_encoder_and_head(make_clusters) -> None:
    """Its outputs are those of weights averaged by hand, in training mode; the first is the start itself."""
    trainer = make_trainer(make_clusters)
    trainer.progress = noted = Noting(trainer)
    trainer.fit()
    assert len(noted.kept) == noted.updates == 6
    for views, outputs, encoder, head in noted.kept:
        with torch.no_grad():
            expected = normalize(normalize(encoder.train()(views)) @ head.T)
        torch.testing.assert_close(outputs, expected)
        assert not outputs.requires_grad
    weights = [encoder[0].weight for _, _, encoder, _ in noted.kept]
    assert not torch.equal(weights[1], weights[2])


def test_the_teacher_leaves_the_statistics_of_batches_alone(make_clusters) -> None:
    """Without one, the same views in the same order leave the same statistics after a step of rate almost 0."""
    found = []
    for taught in (True, False):
        trainer = make_trainer(make_clusters, lr=1e-12, weight_decay=0.0, epochs=1)
        if not taught:
            trainer.step._teacher = None
        trainer.fit()
        trainer.average.swap()
        found.append(trainer.encoder[1].state_dict())
    assert int(found[0]["num_batches_tracked"]) == 3
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name])


def test_the_saved_model_embeds_with_the_head_that_belongs_to_the_saved_encoder(make_clusters, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(make_clusters, run)
    seen: list[tuple[Tensor, Tensor]] = []

    class Watching(Silent):
        def epoch(self, record: dict) -> None:
            seen.append((trainer.metric.factor.clone(), trainer.method.f.weight.detach().clone()))

    trainer.progress = Watching()
    result = trainer.fit()
    assert len(seen) == 3  # the untrained model, too
    for factor, weight in seen:
        assert torch.equal(factor, weight.T.double())
    assert not torch.equal(seen[-1][1], seen[-2][1])
    saved, _ = run.read_tensors("model.safetensors")
    assert torch.equal(saved["metric.factor"], saved["method.f.weight"].T.double())
    assert torch.equal(saved["metric.factor"], result.metric.factor)
    assert torch.equal(saved["encoder.0.weight"], result.encoder[0].weight)
    trainer.average.swap()
    assert not torch.equal(trainer.method.f.weight.T.double(), result.metric.factor)  # the metric is averaged


def test_principal_components_of_the_features_may_be_the_metric(make_clusters) -> None:
    """Those of the features at the start of an epoch."""
    trainer = make_trainer(make_clusters, metric="principal")
    seen: list[tuple[Tensor, Tensor]] = []

    class Watching(Silent):
        def epoch(self, record: dict) -> None:
            features = encode(trainer.encoder, trainer.data.inputs)
            seen.append((trainer.metric.factor.clone(), Metric.principal(features, 3).factor))

    trainer.progress = Watching()
    trainer.fit()
    (start, of_start), (first, of_first), (second, _) = seen
    torch.testing.assert_close(start, of_start)
    torch.testing.assert_close(first, of_start)
    torch.testing.assert_close(second.abs(), of_first.abs(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stopped_in", [1, 2])
def test_a_run_with_principal_components_goes_on_as_if_it_had_not_stopped(
    make_clusters, tmp_path: Path, stopped_in: int
) -> None:
    class Stop(Silent):
        def batch(self, epoch: int, done: int, total: int) -> None:
            if (epoch, done) == (stopped_in, 2):
                raise KeyboardInterrupt

    changes = {"metric": "principal", "average_warmup": False, "epochs": 3}
    whole, parts = (Run.create(tmp_path / name, {}) for name in ("whole", "parts"))
    expected = make_trainer(make_clusters, whole, **changes).fit()
    stopped = make_trainer(make_clusters, parts, **changes)
    stopped.progress = Stop()
    assert stopped.fit().interrupted
    resumed = make_trainer(make_clusters, parts, **changes).fit()
    assert torch.equal(resumed.metric.factor, expected.metric.factor)
    for name in ("model.safetensors", "checkpoint.safetensors"):
        tensors, others = (run.read_tensors(name)[0] for run in (whole, parts))
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensor, others[key]) for key, tensor in tensors.items()), name


def test_heads_start_orthonormal() -> None:
    method = prepared(torch.randn(20, WIDTH), components=3)
    torch.testing.assert_close(method.f.weight @ method.f.weight.T, torch.eye(3))
    torch.testing.assert_close(method.g.weight @ method.g.weight.T, torch.eye(WIDTH))
    assert prepared(torch.randn(20, WIDTH)).f.weight.shape == (WIDTH, WIDTH)


def test_loss_is_the_formula_and_its_gradient_holds_a_part_constant(make_clusters) -> None:
    points, _ = make_clusters(0, 30, WIDTH, 3)
    method = prepared(points, components=3, k=4).double()
    labels = torch.where(torch.arange(30) < 8, torch.arange(30) % 2, -1)
    batch = next(iter(method.constraints(points, labels).minibatches(10, torch.Generator().manual_seed(0))))
    features = normalize(torch.randn(20, WIDTH, dtype=torch.float64)).requires_grad_()
    taught = method.teach(normalize(torch.randn(20, WIDTH, dtype=torch.float64)), batch)
    nodes, known = batch.nodes.repeat(2), batch.labels.repeat(2)
    targets = contextual_targets(taught.outputs, nodes, known, k=4).detach()
    source = (features @ method.g.weight.T).detach()

    def expected(z: Tensor) -> Tensor:
        wide, narrow = z @ method.g.weight.T, z @ method.f.weight.T
        pairs = relaxed_contrastive_loss(wide, targets) / 2 + relaxed_contrastive_loss(narrow, targets) / 2
        return pairs + neighbourhood_divergence(source, narrow)

    loss = method.loss(None, features, taught)
    torch.testing.assert_close(loss, expected(features))
    gradients = [torch.autograd.grad(value, features)[0] for value in (loss, expected(features))]
    torch.testing.assert_close(*gradients)
    assert torch.autograd.gradcheck(expected, (features,), atol=1e-6)


def test_without_a_teacher_the_examples_of_the_epoch_teach(make_clusters) -> None:
    points, _ = make_clusters(0, 30, WIDTH, 3)
    method = prepared(points, augmentation="none")
    found = method.constraints(points, torch.full((30,), -1))
    batch = next(iter(found.minibatches(10, torch.Generator().manual_seed(0))))
    views = points[batch.nodes].repeat(2, 1)
    torch.testing.assert_close(method.loss(None, views, batch), method.loss(None, views, method.teach(views, batch)))


def test_a_batch_is_of_queries_with_their_neighbours(make_clusters) -> None:
    points, classes = make_clusters(0, 40, WIDTH, 4)
    found = prepared(points).constraints(points, torch.full((40,), -1))
    distances = torch.cdist(points, points)
    assert torch.equal(found.neighbours.sort(1).values, distances.argsort(1)[:, :5].sort(1).values)
    assert torch.equal(found.neighbours[:, 0], torch.arange(40))
    queries = []
    for batch in found.minibatches(10, torch.Generator().manual_seed(0)):
        for group in batch.nodes.reshape(2, 5):
            assert torch.equal(group, found.neighbours[group[0]])
            queries.append(int(group[0]))
    assert len(set(queries)) == len(queries) == 8
    share = (classes[found.neighbours[:, 1:]] == classes[:, None]).double().mean()
    assert found.quality(classes) == {"right_neighbours": pytest.approx(float(share))}


@pytest.mark.parametrize(("neighbours", "count"), [(1, 6), (5, 2), (50, 6)])
def test_few_neighbours_and_few_examples(neighbours: int, count: int) -> None:
    points = normalize(torch.randn(count, WIDTH))
    found = prepared(points, neighbours=neighbours).constraints(points, torch.full((count,), -1))
    assert found.neighbours.shape == (count, min(neighbours, count))
    assert len(list(found.minibatches(2, torch.Generator().manual_seed(0)))) == count // 2
    assert found.quality(torch.zeros(count, dtype=torch.int64)) == ({} if neighbours == 1 else {"right_neighbours": 1})


def test_labels_enter_the_targets_and_are_not_needed(make_clusters) -> None:
    points, classes = make_clusters(0, 30, WIDTH, 3)
    method, none = prepared(points), torch.full((30,), -1)
    plain, told = method.constraints(points, none), method.constraints(points, classes)
    same = (classes[:, None] == classes).float()
    assert torch.equal(method._targets(told, 30), same)
    assert not torch.equal(method._targets(plain, 30), same)
    for labels in (none, torch.where(torch.arange(30) < 1, classes, -1), classes):
        method.check_labels(labels)
    weights = [
        make_trainer(make_clusters, labels=labels).fit().encoder[0].weight
        for labels in (torch.full((60,), -1), torch.arange(60) % 3)
    ]
    assert not torch.equal(*weights)


def test_own_data_need_no_label(make_clusters) -> None:
    points, _ = make_clusters(0, 60, 12, 3)
    model = sm.SemiMetric("stml", epochs=1, random_state=0).fit(points.numpy())
    assert model.embedding_.shape[0] == 60


def test_the_command_line_takes_a_table_without_labels(make_clusters, tmp_path: Path) -> None:
    points, _ = make_clusters(0, 60, 12, 3)
    np.save(tmp_path / "points.npy", points.numpy())
    arguments = ("--method", "stml", "--epochs", "1", "--out", tmp_path / "run")
    assert semimetric("fit", tmp_path / "points.npy", *arguments).code == 0
    saved, _ = Run.open(tmp_path / "run").read_tensors("model.safetensors")
    model = sm.load(tmp_path / "run").fitted_.model
    features = encode(model.encoder, model.preprocess(points))
    torch.testing.assert_close(model.embed(points).float(), features @ saved["method.f.weight"].T)


def test_images_and_vectors_alike() -> None:
    images = torch.rand(40, 3, 8, 8)
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, WIDTH))
    settings = TrainingSettings(**SETTINGS | {"epochs": 1})
    data = TrainingData(images, torch.full((40,), -1))
    result = Trainer(encoder, build_method("stml"), data, settings).fit()
    assert result.metric.factor.shape == (WIDTH, WIDTH)


def test_the_averaged_weights_are_refused_when_absent(make_clusters) -> None:
    with pytest.raises(InputError, match="method 'stml' learns from the running average"):
        make_trainer(make_clusters, average=0.0)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("neighbours", 0, "neighbours must be at least 1, got 0"),
        ("k", 0, "k must be at least 1"),
        ("smoothing", 0, "smoothing must be at least 1"),
        ("bandwidth", 0.0, "bandwidth must be a finite number above 0"),
        ("components", -1, "components must be a finite number of at least 0"),
        ("augmentation", "all", "augmentation must be one of"),
    ],
)
def test_wrong_settings_are_refused(name: str, value: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_method("stml", **{name: value})


def test_it_learns_digits_without_labels() -> None:
    """Recall of the nearest neighbour and clusters, on pixels through a network that starts at random."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    inputs = torch.tensor(pixels[:900] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    torch.manual_seed(0)
    encoder = nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64))
    )
    settings = dataclasses.replace(sm.training_settings("stml"), epochs=4)
    trainer = Trainer(
        encoder, build_method("stml", components=16), TrainingData(inputs, torch.full((900,), -1)), settings
    )
    rows = torch.arange(900)
    scores = [sm.evaluate(trainer._embed(rows), classes[:900])]
    trainer.fit()
    scores.append(sm.evaluate(trainer._embed(rows), classes[:900]))
    assert scores[1]["recall@1"] > scores[0]["recall@1"] + 0.02
    assert scores[1]["nmi"] > scores[0]["nmi"] + 0.05
