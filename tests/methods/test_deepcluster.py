from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.draws import draws
from helpers.networks import tiny_cnn
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.evaluation import recall_at_k
from semimetric.methods.baseline import HEAD_DEVIATION, SHARPNESS
from semimetric.methods.deepcluster import Clusters, DeepCluster, DeepClusterSettings, mutual_information, whitened
from semimetric.metric import GraphedFunction, Metric, whitening
from semimetric.metric.whiten import FLOOR
from semimetric.training import Run, Trainer, TrainingData, TrainingSettings
from semimetric.training.optimizer import create_state

WIDTH = 8
EUCLID = Metric.identity(WIDTH)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def prepared(count: int = 60, **values) -> DeepCluster:
    method = DeepCluster(DeepClusterSettings(**({"clusters": 5} | values)))
    method.on_fit_begin(torch.randn(count, 4, generator=seeded()), torch.full((count,), -1), WIDTH, seeded())
    return method


def clustered_as(method: DeepCluster, features: Tensor) -> Clusters:
    return method.constraints(features, torch.full((len(features),), -1))


@torch.no_grad()
def surprise(method: DeepCluster, features: Tensor, clusters: Clusters) -> float:
    return float(method.loss(EUCLID, features, clusters))


def of_sizes(sizes: list[int]) -> Clusters:
    """Clusters of these sizes, their examples in random order; node i is row 2 i of a working set."""
    targets = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    targets = targets[torch.randperm(len(targets), generator=seeded())]
    return Clusters(2 * torch.arange(len(targets)), targets, torch.tensor(sizes) > 0)


def test_clusters_are_drawn_equally_often_and_so_are_the_examples_of_each() -> None:
    """Every count is binomial; five standard deviations are never exceeded but by a wrong sampler."""
    whole, generator = of_sizes([1, 0, 10, 100, 0, 389]), seeded(1)
    batches = [batch for _ in range(40) for batch in whole.minibatches(50, generator)]
    targets = torch.cat([batch.targets for batch in batches])
    draws = len(targets)
    assert draws == 40 * 500
    counts = torch.bincount(targets, minlength=6)
    assert counts[[1, 4]].tolist() == [0, 0]
    bound = 5 * math.sqrt(draws * 1 / 4 * 3 / 4)
    assert (counts[[0, 2, 3, 5]] - draws / 4).abs().max() < bound
    nodes = torch.cat([batch.nodes for batch in batches])
    for node in whole.nodes[whole.targets == 2].tolist():
        assert abs(int((nodes == node).sum()) - draws / 40) < 5 * math.sqrt(draws / 40)
    assert set(nodes.tolist()) <= set(whole.nodes.tolist())
    assert torch.equal(whole.targets[nodes // 2], targets)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_batches_are_full_of_one_shape_and_of_the_generator_alone(size: int) -> None:
    whole = of_sizes([20, 0, 40])
    before = torch.get_rng_state()
    batches, again = (list(whole.minibatches(size, seeded(3))) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert len(batches) == 60 // size
    for batch, same in zip(batches, again, strict=True):
        assert batch.nodes.shape == batch.targets.shape == (size,)
        assert torch.equal(batch.nodes, same.nodes)
        assert torch.equal(batch.filled, whole.filled)
    assert list(whole.minibatches(61, seeded())) == []


@given(st.integers(0, 10_000), st.integers(1, 6))
@draws(20)
def test_whitened_features_have_the_identity_for_their_covariance(seed: int, components: int) -> None:
    features = randn(50, 6, seed=seed) @ randn(6, 6, seed=seed + 1) + 3.0
    centred = features - features.mean(0)
    white = whitening(features, components).transform(centred)
    variances = torch.linalg.svdvals(centred.double()).square()[:components]
    rounding = 1e-13 * float(variances[0] / variances[-1])  # the smallest direction has the digits that are left to it
    stretched = variances / variances.clamp_min(FLOOR * variances[0])
    assert torch.allclose(white.mean(0), torch.zeros(components).double(), atol=1e-9 + rounding)
    assert torch.allclose(white.T @ white / 50, stretched.diag(), atol=1e-9 + rounding)


def test_whitening_keeps_the_largest_components_and_leaves_null_directions_without_variance() -> None:
    varied = randn(200, 3)
    varied = varied - varied.mean(0)
    varied = torch.linalg.qr(varied).Q * math.sqrt(200) * torch.tensor([5.0, 2.0, 0.0])
    first = whitening(varied, 1).transform(varied)
    assert torch.allclose(first.abs(), varied[:, :1].abs() / 5.0, atol=1e-9)
    white = whitening(varied, 3).transform(varied)
    assert torch.allclose(white.square().mean(0), torch.tensor([1.0, 1.0, 0.0]).double(), atol=1e-9)


def test_directions_below_the_floor_are_stretched_no_further() -> None:
    varied = torch.linalg.qr(randn(200, 2) - randn(200, 2).mean(0)).Q * math.sqrt(200) * torch.tensor([1.0, 1e-4])
    varied = varied - varied.mean(0)
    white = whitening(varied, 2, floor=1e-6).transform(varied)
    assert white.square().mean(0).tolist() == pytest.approx([1.0, 1e-8 / 1e-6], rel=0.1)
    with pytest.raises(InputError, match="n_components is 3"):
        whitening(varied, 3)


def test_rounding_is_not_taken_for_variance() -> None:
    last_place = torch.randint(2, (100, 4), generator=seeded()) * torch.finfo(torch.float32).eps
    features = 1.0 + last_place
    assert (features != 1.0).any()
    white = whitening(features, 4).transform(features - features.mean(0))
    assert float(white.abs().max()) < 0.2


@pytest.mark.parametrize(("count", "pca", "expected"), [(40, 256, 8), (40, 3, 3), (5, 256, 4)])
def test_points_to_cluster_are_unit_rows_of_as_many_components_as_there_are(
    count: int, pca: int, expected: int
) -> None:
    points = whitened(randn(count, 8), pca)
    assert points.shape == (count, expected)
    assert torch.allclose(points.norm(dim=1), torch.ones(count).double())


@given(st.integers(0, 10_000), st.integers(1, 6))
@draws(20)
def test_mutual_information_is_that_of_scikit_learn(seed: int, clusters: int) -> None:
    first, second = torch.randint(clusters, (2, 40), generator=seeded(seed))
    expected = normalized_mutual_info_score(first.numpy(), second.numpy())
    assert mutual_information(first, second) == pytest.approx(expected, abs=1e-9)
    names = torch.randperm(clusters, generator=seeded(seed))
    assert mutual_information(first, names[first]) == pytest.approx(1.0)


def test_it_finds_separated_clusters(make_clusters) -> None:
    features, classes = make_clusters(0, 60, WIDTH, 5, 0.02)
    found = clustered_as(prepared(), features)
    assert torch.equal(found.nodes, torch.arange(60))
    assert found.filled.all()
    assert found.quality(classes) == {"purity": 1.0}
    assert mutual_information(found.targets, classes) == pytest.approx(1.0)


def test_purity_is_the_share_of_the_commonest_class_of_each_cluster() -> None:
    targets = torch.tensor([0, 0, 0, 2, 2, 2, 2])
    classes = torch.tensor([9, 4, 4, 7, 9, 9, -1])
    filled = torch.tensor([True, False, True])
    assert Clusters(torch.arange(7), targets, filled).quality(classes)["purity"] == pytest.approx(4 / 7)
    reordered = Clusters(torch.tensor([6, 0]), torch.tensor([0, 0]), filled)
    assert reordered.quality(classes)["purity"] == pytest.approx(1 / 2)


def test_clusters_depend_on_the_epoch_and_on_nothing_else_that_is_random(make_clusters) -> None:
    features, _ = make_clusters(1, 60, WIDTH, 3)
    method = prepared()
    found = []
    for epoch in (1, 2):
        method.on_epoch_begin(epoch)
        torch.manual_seed(epoch)
        found.append(clustered_as(method, features).targets)
        assert torch.equal(found[-1], clustered_as(method, features).targets)
        assert torch.equal(found[-1], method.assignment)
    assert not torch.equal(*found)


def test_the_last_epochs_clusters_are_compared_with_these(make_clusters) -> None:
    features, _ = make_clusters(1, 60, WIDTH, 3)
    method = prepared()
    method.on_epoch_begin(1)
    first = clustered_as(method, features)
    assert "nmi_with_last" not in method.statistics(EUCLID, features, first)
    method.on_epoch_begin(2)
    assert torch.equal(method.previous, first.targets)
    second = clustered_as(method, features)
    found = method.statistics(EUCLID, features, second)
    assert found["nmi_with_last"] == pytest.approx(mutual_information(first.targets, second.targets))
    assert 0.0 < found["nmi_with_last"] < 1.0
    assert found["clusters"] == 5.0
    assert found["largest_cluster"] == float(second.sizes.max()) / 60


def test_loss_is_the_surprise_at_the_cluster_among_those_that_have_examples() -> None:
    method = prepared().double().eval()
    weight, bias = method.head.weight.detach(), method.head.bias.detach()
    whole = Clusters(torch.arange(4), torch.tensor([0, 2, 2, 4]), torch.tensor([True, False, True, False, True]))
    features = unit_features(randn(4, WIDTH))
    total = 0.0
    for row, target in zip(features, whole.targets, strict=True):
        logits = [float(SHARPNESS * weight[k] @ row + bias[k]) for k in range(5)]
        total -= math.log(math.exp(logits[target]) / sum(math.exp(logits[k]) for k in (0, 2, 4)))
    loss = method.loss(EUCLID, features, whole)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(total / 4)
    assert not method.head.weight.grad[[1, 3]].any()
    assert method.head.weight.grad[[0, 2, 4]].abs().sum(1).min() > 0


def after_a_step(rate: float) -> tuple[Tensor, Tensor]:
    """Logits of a head at the start of an epoch, and their change by a step of Adam with the encoder fixed."""
    method = prepared(head_rate=rate).double()
    torch.manual_seed(0)
    method.on_epoch_begin(1)
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-6)
    features, whole = unit_features(randn(60, WIDTH)), of_sizes([12] * 5)

    def logits() -> Tensor:
        return SHARPNESS * rate * features @ method.head.weight.detach().T

    method.loss(EUCLID, features, whole).backward()
    before = logits()
    optimizer.step()
    return before, logits() - before


def test_the_rate_of_the_head_is_how_much_faster_its_logits_change_from_the_same_start() -> None:
    (start, change), (same, faster) = after_a_step(1.0), after_a_step(10.0)
    assert start.abs().max() > 0.1
    assert torch.allclose(start, same)
    assert torch.allclose(10.0 * change, faster, rtol=1e-3)


def test_views_are_as_strong_as_asked_for() -> None:
    """Dropped entries of a vector become the mean of their column: only strong views have them."""
    inputs = torch.randn(60, 4, generator=seeded())
    means = {}
    for strength in ("weak", "strong"):
        method = DeepCluster(DeepClusterSettings(clusters=5, views=strength))
        method.on_fit_begin(inputs, torch.full((60,), -1), WIDTH, seeded())
        torch.manual_seed(0)
        means[strength] = float((method.views(inputs) - inputs).square().mean())
    assert 0.0 < means["weak"] < 0.01
    assert means["strong"] > 0.05


def test_names_of_clusters_do_not_matter() -> None:
    """With the rows of the head renamed alike the loss is the same; rows are drawn alike, so the mean over heads is."""
    method = prepared().double().eval()
    method.head.weight.data.mul_(50.0)
    whole, features = of_sizes([10, 0, 30, 5, 15]), unit_features(randn(60, WIDTH, seed=3))
    order = torch.tensor([3, 0, 4, 1, 2])
    renamed = Clusters(
        whole.nodes, order[whole.targets], torch.zeros(5, dtype=torch.bool).index_copy(0, order, whole.filled)
    )
    expected = surprise(method, features, whole)
    method.head.weight.data.index_copy_(0, order, method.head.weight.data.clone())
    assert surprise(method, features, renamed) == pytest.approx(expected)
    assert surprise(method, features, whole) != pytest.approx(expected, rel=1e-3)


def mean_over_heads(method: DeepCluster, features: Tensor, whole: Clusters) -> float:
    losses = []
    for seed in range(400):
        method.head.weight.data.normal_(generator=seeded(seed)).mul_(0.1)
        losses.append(surprise(method, features, whole))
    return sum(losses) / len(losses)


def test_the_expected_loss_does_not_depend_on_the_names_of_clusters() -> None:
    method, features = prepared().double().eval(), unit_features(randn(60, WIDTH, seed=3))
    whole = of_sizes([10, 0, 30, 5, 15])
    renamed = Clusters(whole.nodes, 4 - whole.targets, whole.filled.flip(0))
    means = [mean_over_heads(method, features, clusters) for clusters in (whole, renamed)]
    assert means[0] == pytest.approx(means[1], rel=0.05)
    assert means[0] > math.log(4) + 0.2  # heads that differ, not heads that know nothing


def test_there_are_at_most_as_many_clusters_as_examples(make_clusters) -> None:
    features, classes = make_clusters(0, 20, WIDTH, 4)
    method = prepared(20, clusters=100)
    assert method.head.weight.shape == (20, WIDTH)
    found = clustered_as(method, features)
    assert found.quality(classes)["purity"] == 1.0
    batch = next(found.minibatches(6, seeded()))
    assert surprise(method, features[batch.nodes], batch) == pytest.approx(math.log(20), rel=0.1)


@pytest.mark.parametrize("value", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_that_are_all_the_same_are_survived(value: float, dtype: torch.dtype) -> None:
    features = torch.full((60, WIDTH), value, dtype=dtype)
    assert torch.isfinite(whitened(features, 256)).all()
    method = prepared().to(dtype)
    for epoch in (1, 2):
        method.on_epoch_begin(epoch)
        found = clustered_as(method, features)
        assert int(found.filled.sum()) == 1
        batch = next(found.minibatches(10, seeded()))
        leaf = features[batch.nodes].requires_grad_()
        loss = method.loss(EUCLID, leaf, batch)
        loss.backward()
        assert float(loss.detach()) == 0.0
        assert torch.isfinite(leaf.grad).all()
        statistics = method.statistics(EUCLID, features, found)
        assert statistics["largest_cluster"] == 1.0
    assert statistics["nmi_with_last"] == 1.0


def test_clusters_without_examples_are_left_out() -> None:
    """Three distinct points leave three of five clusters."""
    features = unit_features(torch.randn(3, WIDTH, generator=seeded())).repeat(20, 1)
    method = prepared()
    found = clustered_as(method, features)
    assert int(found.filled.sum()) == 3
    assert torch.equal(found.sizes > 0, found.filled)
    assert method.statistics(EUCLID, features, found)["clusters"] == 3.0
    batch = next(found.minibatches(30, seeded()))
    assert found.filled[batch.targets].all()
    assert surprise(method, features[batch.nodes], batch) == pytest.approx(math.log(3), rel=0.1)


def test_clustering_many_examples_holds_no_distance_between_them(largest_tensor) -> None:
    method = prepared(6000, clusters=100)
    features = unit_features(torch.randn(6000, WIDTH, generator=seeded()))
    with largest_tensor() as largest:
        clustered_as(method, features)
    assert largest.entries <= 6000 * 100


def noisy(seed: int, each: int = 40) -> tuple[Tensor, Tensor]:
    """Patterns of 8 classes under twice as much noise."""
    generator = seeded(seed)
    classes = torch.arange(8 * each) % 8
    patterns = nn.functional.interpolate(torch.randn(8, 3, 4, 4, generator=generator), 8)
    return patterns[classes] + 2.0 * torch.randn(len(classes), 3, 8, 8, generator=generator), classes


def trainer_of(images: Tensor, classes: Tensor, run: Run | None = None, **changes) -> Trainer:
    torch.manual_seed(0)
    encoder = tiny_cnn()
    quick = {"epochs": 2, "batch_size": 64, "lr": 0.03, "selection": "last"} | changes
    data = TrainingData(images, torch.full_like(classes, -1), classes=classes)
    return Trainer(encoder, DeepCluster(DeepClusterSettings(clusters=24)), data, TrainingSettings(**quick), run=run)


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_every_epoch_starts_with_a_new_head(average: float, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(*noisy(0), average=average, epochs=4)
    method, original = trainer.method, DeepCluster._renew_head
    starts: list[Tensor] = []

    def renewing(self: DeepCluster) -> None:
        step = int(self.steps)
        before = self.head.weight.detach().clone()
        original(self)
        assert step == 0 or torch.equal(self.head.weight, before)
        if step == 0:
            starts.append(self.head.weight.detach().clone())
            assert not self.head.bias.any()

    monkeypatch.setattr(DeepCluster, "_renew_head", renewing)
    trainer.fit()
    assert len(starts) == 4
    assert all(float(start.std()) == pytest.approx(HEAD_DEVIATION, rel=0.1) for start in starts)
    assert len({float(start[0, 0]) for start in starts}) == 4
    assert int(method.steps) == 5
    assert method.head.bias.any()


def test_a_resumed_run_compares_its_clusters_with_those_before_it_stopped(tmp_path: Path) -> None:
    images, classes = noisy(1)
    runs = [Run.create(tmp_path / name, {}) for name in ("whole", "parts")]
    trainer_of(images, classes, runs[0], epochs=3).fit()
    trainer_of(images, classes, runs[1], epochs=1).fit()
    trainer_of(images, classes, runs[1], epochs=3).fit()
    whole, parts = (
        [{name: value for name, value in record.items() if name != "seconds"} for record in run.history()]
        for run in runs
    )
    assert whole == parts
    assert ["nmi_with_last" in record for record in whole] == [False, False, True, True]
    assert all(0.0 < record["purity"] < 1.0 for record in whole[1:])


def test_a_rehearsed_step_leaves_no_trace() -> None:
    """What a GPU does before it records a step, on the CPU, at the start of an epoch."""
    trainer = trainer_of(*noisy(2, each=10), lr=1e-5)
    method = trainer.method
    torch.manual_seed(1)
    method.on_epoch_begin(1)
    found = clustered_as(method, trainer._features(trainer.data.inputs))
    batch = next(found.minibatches(16, seeded()))
    views = trainer.step.views(trainer.step.inputs[batch.nodes], 1)[0]
    create_state(trainer.optimizer)
    trainer.step._batch_type = Clusters
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    with trainer._weights_of_steps():
        recorded = GraphedFunction(trainer.step._on_tensors, trainer.step._changed_by_a_step)
        recorded.rehearse(trainer.metric.factor, views, batch.nodes, batch.targets, batch.filled)
        assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
        trainer.step(trainer.metric, views, batch)
    assert int(method.steps) == 1
    assert torch.allclose(method.head.weight, method.fresh, atol=0.01 * HEAD_DEVIATION)  # one small step on
    assert not torch.allclose(method.head.weight, before["head.weight"], atol=0.01 * HEAD_DEVIATION)


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_training_without_labels_raises_recall() -> None:
    images, classes = noisy(0)
    trainer = trainer_of(images, classes, epochs=30)
    rows = torch.arange(len(images))
    before = recall_at_k(trainer._embed(rows), classes, (1,))[1]
    trainer.fit()
    assert recall_at_k(trainer._embed(rows), classes, (1,))[1] > before + 0.1


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"clusters": 1}, "clusters"),
        ({"pca": 0}, "pca"),
        ({"augmentation": "magic"}, "augmentation"),
        ({"views": "none"}, "views"),
        ({"head_rate": 0.0}, "head_rate"),
    ],
)
def test_impossible_settings_are_refused(values: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        DeepClusterSettings(**values)
