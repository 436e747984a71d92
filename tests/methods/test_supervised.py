"""The supervised baselines: their batches, what they refuse, what they log, and that they learn."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from helpers.draws import draws
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders import encode, unit_features
from semimetric.evaluation import recall_at_k
from semimetric.losses import angular_margins, batch_angular_loss, triplet_loss
from semimetric.methods.angular import Angular, AngularSettings
from semimetric.methods.supervised import PROBE_SIZE, Dealer, Deck, Labelled, Supervised
from semimetric.methods.triplet import SemiHardTriplets, SemiHardTripletsSettings
from semimetric.metric import Metric
from semimetric.mining import labelled_masks
from semimetric.training import Silent, Trainer, TrainingData, TrainingSettings

BOTH = pytest.mark.parametrize("kind", [SemiHardTriplets, Angular])


def dealt(targets: list[int], size: int, per_class: int = 5, seed: int = 0) -> list[list[int]]:
    """The rows of all batches of an epoch."""
    dealer = Dealer(targets, per_class, torch.Generator().manual_seed(seed))
    return [dealer.deal(size) for _ in range(len(targets) // size)]


@st.composite
def epochs(draw):
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    targets = [7 * target for target, count in enumerate(counts) for _ in range(count)]
    return targets, draw(st.integers(1, len(targets))), draw(st.integers(2, 6)), draw(st.integers(0, 1000))


@draws(200)
@given(epochs())
@example(([0, 1, 2, 3, 3], 3, 5, 0))
@example(([0, 0, 0, 0, 0, 0, 1], 7, 2, 0))
@example(([0, 1, 2, 3], 3, 5, 0))
def test_batches_are_full_of_different_examples_and_hold_a_triplet_wherever_they_can(epoch):
    targets, size, per_class, seed = epoch
    counts = Counter(targets)
    batches = dealt(targets, size, per_class, seed)
    assert len(batches) == len(targets) // size
    for rows in batches:
        assert len(rows) == len(set(rows)) == size
        assert set(rows) <= set(range(len(targets)))
        held = Counter(targets[row] for row in rows)
        if size >= 2 and len(counts) >= 2:
            assert len(held) >= 2
        if size >= 3 and max(counts.values()) >= 2:
            assert max(held.values()) >= 2


@draws(100)
@given(epochs())
def test_all_examples_of_a_class_are_met_before_one_is_met_again(epoch):
    targets, size, per_class, seed = epoch
    met = Counter(row for rows in dealt(targets, size, per_class, seed) for row in rows)
    for target in set(targets):
        times = [met[row] for row, other in enumerate(targets) if other == target]
        assert max(times) - min(times) <= 1


@draws(50)
@given(st.integers(1, 4), st.integers(2, 6), st.integers(2, 4), st.integers(0, 1000))
def test_classes_of_equal_size_are_met_once_in_an_epoch(count, per_class, together, seed):
    targets = [target for target in range(count * together) for _ in range(per_class)]
    batches = dealt(targets, together * per_class, per_class, seed)
    assert sorted(row for rows in batches for row in rows) == list(range(len(targets)))
    for rows in batches:
        assert set(Counter(targets[row] for row in rows).values()) == {per_class}


@pytest.mark.parametrize(
    ("classes", "size", "per_class", "shares"),
    [
        (20, 20, 5, [5, 5, 5, 5]),
        (20, 18, 5, [5, 5, 5, 3]),  # the last class fills up
        (3, 24, 5, [8, 8, 8]),  # too few classes
        (3, 20, 5, [7, 7, 6]),
        (20, 6, 5, [3, 3]),  # two classes rather than five of one
        (20, 7, 5, [4, 3]),
        (20, 3, 5, [2, 1]),
    ],
)
def test_how_many_of_each_class_are_in_a_batch(classes, size, per_class, shares):
    targets = [row % classes for row in range(20 * classes)]
    for rows in dealt(targets, size, per_class):
        assert sorted(Counter(targets[row] for row in rows).values(), reverse=True) == shares


def test_cards_that_were_barred_are_dealt_next_and_no_more_often_than_others():
    deck = Deck([3, 5, 8], torch.Generator().manual_seed(0))
    assert [deck.draw({5, 8}) for _ in range(4)] == [3] * 4
    assert {deck.draw(()) for _ in range(2)} == {5, 8}
    assert {deck.draw(()) for _ in range(3)} == {3, 5, 8}


def test_small_classes_are_met_as_often_as_large_ones_and_their_examples_more_often():
    targets = [0] * 180 + [1] * 10 + [2] * 10
    met = Counter(targets[row] for rows in dealt(targets, 20) for row in rows)
    assert sum(met.values()) == 200
    assert met[1] == met[2] == pytest.approx(200 / 3, abs=10)
    assert met[0] == pytest.approx(200 / 3, abs=15)


def test_large_classes_fill_what_small_ones_leave():
    targets = [0] * 30 + [1] + [2] * 2
    for rows in dealt(targets, 15):
        assert Counter(targets[row] for row in rows) == {0: 12, 1: 1, 2: 2}


def labelled(targets: Tensor, per_class: int = 5) -> Labelled:
    method = SemiHardTriplets(SemiHardTripletsSettings(per_class=per_class))
    return method.constraints(torch.zeros(len(targets), 2), targets)


def test_batches_carry_their_classes_and_fresh_draws():
    targets = torch.tensor([3, -1, 3, 8, 8, -1, 3, 8, 5, 5])
    constraints = labelled(targets, per_class=2)
    assert torch.equal(constraints.nodes, torch.tensor([0, 2, 3, 4, 6, 7, 8, 9]))
    batches = list(constraints.minibatches(4, torch.Generator().manual_seed(0)))
    assert len(batches) == 2
    for batch in batches:
        assert torch.equal(batch.targets, targets[batch.nodes])
        assert int(batch.targets.min()) >= 0
        assert batch.draws.shape == (4, 4)
        assert len(batch.draws.unique()) == 16
        assert all(isinstance(getattr(batch, field.name), Tensor) for field in dataclasses.fields(batch))
    assert not torch.equal(batches[0].draws, batches[1].draws)
    other = next(constraints.minibatches(4, torch.Generator().manual_seed(1)))
    assert not torch.equal(other.draws, batches[0].draws)
    again = next(batches[0].minibatches(3, torch.Generator().manual_seed(0)))
    assert set(again.nodes.tolist()) < set(batches[0].nodes.tolist())


def test_all_labelled_examples_take_little_memory_until_they_are_a_batch():
    constraints = labelled(torch.arange(100_000) % 10)
    assert constraints.draws.shape == (100_000, 100_000)
    assert constraints.draws.untyped_storage().nbytes() == 4
    assert constraints.quality(torch.zeros(100_000)) == {}


@BOTH
def test_a_single_label_of_each_class_is_refused_with_what_to_do(kind) -> None:
    labels = torch.tensor([0, 1, 4, -1, -1])
    with pytest.raises(InputError, match=r"each of the 3 classes has one\. Label a second .* 'consensus'"):
        kind().check_labels(labels)
    kind().check_labels(torch.tensor([0, 1, 4, -1, 4]))
    with pytest.raises(InputError, match="at least 2 classes"):
        kind().check_labels(torch.tensor([4, 4, -1]))
    with pytest.raises(InputError, match="needs labels and there is none"):
        kind().check_labels(torch.tensor([-1, -1]))


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        (SemiHardTripletsSettings, {"margin": 0.0}, "margin must be a finite number above 0"),
        (SemiHardTripletsSettings, {"per_class": 1}, "per_class must be at least 2"),
        (AngularSettings, {"per_class": 1}, "per_class must be at least 2"),
        (AngularSettings, {"alpha": 85.0}, "alpha is 85.0; .* at most 80"),
        (AngularSettings, {"augmentation": "vector"}, "augmentation must be one of"),
        (AngularSettings, {"components": -1}, "components must be a finite number of at least 0"),
    ],
)
def test_impossible_settings_are_refused(kind, change, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        kind(**change)


def test_losses_are_those_of_the_projected_batch(make_clusters) -> None:
    points, labels = make_clusters(0, 24, 6, 3)
    metric = Metric.random_orthonormal(6, 4, torch.Generator().manual_seed(0))
    projected = points @ metric.factor.float()
    batch = next(labelled(labels).minibatches(12, torch.Generator().manual_seed(0)))
    features, targets = points[batch.nodes], batch.targets
    hinge = SemiHardTriplets(SemiHardTripletsSettings(margin=0.5)).loss(metric, features, batch)
    torch.testing.assert_close(hinge, triplet_loss(projected[batch.nodes], targets, batch.draws, 0.5))
    angular = Angular(AngularSettings(alpha=50.0, constant=True)).loss(metric, features, batch)
    torch.testing.assert_close(angular, batch_angular_loss(projected[batch.nodes], targets, 50.0, True))


def test_one_weak_view_of_each_example(make_clusters) -> None:
    points, labels = make_clusters(0, 24, 6, 3)
    for augmentation, moved in (("auto", True), ("none", False)):
        method = Angular(AngularSettings(augmentation=augmentation))
        method.on_fit_begin(points, labels, 6, torch.Generator())
        views = method.views(points)
        assert views.shape == points.shape
        assert torch.equal(views, points) != moved
        assert (views - points).abs().max() < 0.5


@BOTH
def test_parted_classes_violate_nothing_and_mixed_ones_cost_more(kind) -> None:
    labels = torch.arange(12) % 3
    metric, method = Metric.identity(3), kind()
    constraints = method.constraints(torch.zeros(12, 3), labels)
    parted = method.statistics(metric, torch.eye(3)[labels], constraints)
    mixed = method.statistics(metric, torch.eye(3)[torch.arange(12) // 4], constraints)
    assert parted["active_share"] == 0
    assert mixed["active_share"] > 0.5
    assert mixed["loss"] > parted["loss"] + 0.5


def test_a_single_point_violates_the_margin_in_every_pair() -> None:
    labels, method = torch.arange(12) % 3, SemiHardTriplets()
    near = torch.ones(12, 3) + 0.01 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    found = method.statistics(Metric.identity(3), near, method.constraints(near, labels))
    assert found["active_share"] == 1
    assert found["loss"] == pytest.approx(0.2, abs=0.01)


def test_negatives_on_the_far_side_violate_no_angle() -> None:
    """All products with them are negative, those with examples of the same class are not."""
    labels, method = torch.arange(12) % 2, Angular()
    noise = 0.1 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    points = unit_features(torch.tensor([[1.0, 0.0, 0.0]]) * (2 * labels[:, None] - 1) + noise)
    assert method.statistics(Metric.identity(3), points, method.constraints(points, labels))["active_share"] == 0


def test_violated_angles_are_those_at_the_hardest_of_all_negatives(make_clusters) -> None:
    points, labels = make_clusters(3, 20, 4, 4, spread=0.5)
    method = Angular()
    constraints = method.constraints(points, labels)
    found = method.statistics(Metric.identity(4), points, constraints)["active_share"]
    positive, negative = labelled_masks(labels)
    violated = []
    for a, p in positive.nonzero().tolist():
        negatives = negative[a].nonzero().flatten()
        triplets = torch.stack([torch.full_like(negatives, a), torch.full_like(negatives, p), negatives], dim=1)
        violated.append(float(angular_margins(points, triplets).max()) > 0)
    assert 0 < found < 1
    assert found == pytest.approx(sum(violated) / len(violated))


@BOTH
def test_statistics_of_many_examples_are_of_some_and_the_same_every_time(kind, largest_tensor) -> None:
    labels = torch.arange(4000) % 2
    points = unit_features(torch.randn(4000, 8, generator=torch.Generator().manual_seed(0)) + 3 * labels[:, None])
    method = kind()
    constraints = method.constraints(points, labels)
    with largest_tensor() as record:
        first = method.statistics(Metric.identity(8), points, constraints)
    assert record.entries <= 2 * PROBE_SIZE**2
    assert first == method.statistics(Metric.identity(8), points, constraints)
    assert first.keys() == {"loss", "active_share"}


def train(method: Supervised, inputs: Tensor, labels: Tensor, **changes) -> Trainer:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(inputs.shape[1], 32), nn.ReLU(), nn.Linear(32, 16))
    values = {"epochs": 3, "batch_size": 20, "lr": 0.01, "selection": "last"} | changes
    return Trainer(encoder, method, TrainingData(inputs, labels), TrainingSettings(**values))


class Notes(Silent):
    """Keeps what training says."""

    def __init__(self) -> None:
        self.records: list[dict] = []
        self.warnings: list[str] = []

    def epoch(self, record: dict) -> None:
        self.records.append(record)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@BOTH
@pytest.mark.parametrize(("size", "share"), [(1, 1.0), (2, 1.0), (3, 0.0), (20, 0.0)])
def test_batches_without_a_triplet_are_counted_and_told(kind, size: int, share: float, make_clusters) -> None:
    points, labels = make_clusters(0, 24, 6, 3)
    trainer = train(kind(), points, labels, batch_size=size, epochs=2)
    trainer.progress = notes = Notes()
    before = trainer.encoder[0].weight.detach().clone()
    trainer.optimizer.param_groups[0]["weight_decay"] = 0.0
    result = trainer.fit()
    assert [record["skipped_batches"] for record in notes.records[1:]] == [share] * 2
    assert trainer.method.tally.tolist() == [24 // size, share * (24 // size)]
    assert result.guards == (("no_triplet",) if share else ())
    assert torch.equal(before, trainer.encoder[0].weight) == bool(share)
    said = [text for text in notes.warnings if f"{24 // size} of {24 // size} batches" in text]
    assert len(said) == bool(share)


def test_evaluation_counts_no_batch(make_clusters) -> None:
    points, labels = make_clusters(0, 24, 6, 3)
    method = Angular().eval()
    method.loss(Metric.identity(6), points, method.constraints(points, labels))
    assert method.tally.tolist() == [0, 0]
    method.train().loss(Metric.identity(6), points, method.constraints(points, torch.zeros(24, dtype=torch.int64)))
    assert method.tally.tolist() == [1, 1]
    method.on_epoch_begin(1)
    assert method.tally.tolist() == [0, 0]


def hidden_clusters(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Five classes in 4 of 24 dimensions, the others loud noise."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2.0 * torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    classes = torch.arange(count) % 5
    signal = centres[classes] + 0.5 * torch.randn(count, 4, generator=generator)
    return torch.cat([signal, 1.5 * torch.randn(count, 20, generator=generator)], dim=1), classes


def recall_after(method: Supervised, labels: Tensor, epochs: int) -> float:
    inputs, _ = hidden_clusters(1, 300)
    trainer = train(method, inputs, labels, epochs=epochs, batch_size=50, lr=0.05)
    encoder = trainer.fit().encoder
    unseen, classes = hidden_clusters(2, 300)
    return recall_at_k(trainer.metric.transform(encode(encoder, unseen)), classes, ks=(1,))[1]


@BOTH
@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_training_raises_recall_of_unseen_examples_and_shuffled_labels_do_not(kind) -> None:
    _, classes = hidden_clusters(1, 300)
    start, learned = (recall_after(kind(), classes, epochs) for epochs in (0, 20))
    assert learned > start + 0.15
    shuffled = classes[torch.randperm(300, generator=torch.Generator().manual_seed(0))]
    assert recall_after(kind(), shuffled, 20) < learned - 0.15
