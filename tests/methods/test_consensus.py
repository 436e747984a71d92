from __future__ import annotations

import math
import warnings

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.data import augment, augmentation_for
from semimetric.encoders import build_encoder, unit_features
from semimetric.graph import class_posteriors, nearest_neighbors
from semimetric.losses import contextual_targets, relaxed_contrastive_loss
from semimetric.losses.contrastive import FLOOR
from semimetric.methods import build_method
from semimetric.methods.agreement import SMALLEST_SHARE, Agreement, certainty, geometric_mean
from semimetric.methods.baseline import SHARPNESS
from semimetric.methods.consensus import Consensus
from semimetric.metric import Metric
from semimetric.pipeline.presets import training_settings
from semimetric.training import Trainer, TrainingData, TrainingWarning

WIDTH = 12


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def probabilities(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=seeded(seed), dtype=torch.float64).mul(2).softmax(1)


def agreement_of(shares: Tensor, known: Tensor) -> Agreement:
    """What rows of posteriors of the classes 3, 8, 13, ... say, of which the ``known`` ones are labels."""
    names = 5 * torch.arange(shares.shape[1]) + 3
    sure = certainty(shares)
    nodes = torch.arange(len(shares))
    sides = (nodes[:, None], shares[:, :0])
    return Agreement(nodes, shares, shares, torch.ones_like(sure), sure, sure, known, *sides, names)


def agreement(count: int = 90, labelled: int = 12, unsure: int = 0) -> Agreement:
    """Random posteriors; labelled examples, spread over the rows, are certain, and some others know nothing."""
    shares = probabilities(count, 3)
    order = torch.randperm(count, generator=seeded(1))
    known = torch.zeros(count, dtype=torch.bool)
    known[order[:labelled]] = True
    shares[known] = nn.functional.one_hot(shares.argmax(1), 3).double()[known]
    shares[order[labelled : labelled + unsure]] = 1 / 3
    return agreement_of(shares, known)


def prepared(points: Tensor, labels: Tensor, width: int = WIDTH, **values) -> Consensus:
    method = build_method("consensus", **({"k": 6} | values))
    method.on_fit_begin(points, labels, width, seeded())
    return method


def clusters(counts: list[int], spread: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit-norm points around random class directions, so many of each class, in random order."""
    generator = seeded(seed)
    centres = unit_features(torch.randn(len(counts), 16, generator=generator))
    classes = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    classes = classes[torch.randperm(len(classes), generator=generator)]
    return unit_features(centres[classes] + spread * torch.randn(len(classes), 16, generator=generator)), classes


def first_labels(classes: Tensor, counts: list[int]) -> Tensor:
    """The labels of the first so many examples of each class."""
    labels = torch.full_like(classes, -1)
    for name, count in enumerate(counts):
        labels[(classes == name).nonzero().flatten()[:count]] = name
    return labels


def trainer_of(points: Tensor, labels: Tensor, values: dict | None = None, **changes) -> Trainer:
    """A trainer as anyone with vectors of their own would make it, of a few epochs."""
    method = build_method("consensus", **({"k": 5} | (values or {})))
    quick = {"epochs": 10, "batch_size": 64, "average": 0.9, "hold_back": 0.0} | changes
    encoder = build_encoder("mlp", (points.shape[1],), 0)
    return Trainer(encoder, method, TrainingData(points, labels), training_settings("consensus", **quick))


def taken_for(trainer: Trainer) -> Agreement:
    """What the trainer's method makes of all its examples now."""
    return trainer.method.constraints(trainer._features(trainer.data.inputs), trainer.data.labels)


@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
@draws(25)
def test_geometric_mean_equals_its_definition(seed: int, share: float) -> None:
    first, second = probabilities(7, 4, seed), probabilities(7, 4, seed + 1)
    found = geometric_mean(first, second, share)
    for row in range(7):
        pairs = [(max(float(first[row, c]), 1e-6), max(float(second[row, c]), 1e-6)) for c in range(4)]
        products = [one ** (1 - share) * other**share for one, other in pairs]
        assert found[row].tolist() == pytest.approx([product / sum(products) for product in products], rel=1e-9)


def test_geometric_mean_goes_from_the_one_to_the_other() -> None:
    first, second = probabilities(9, 3), probabilities(9, 3, seed=5)
    assert torch.allclose(geometric_mean(first, second, 0.0), first)
    assert torch.allclose(geometric_mean(first, second, 1.0), second)
    assert torch.allclose(geometric_mean(first, second, torch.tensor(0.3)), geometric_mean(second, first, 0.7))


def test_what_one_rules_out_the_other_can_still_bring_back() -> None:
    certain, opposed = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    assert torch.allclose(geometric_mean(certain, opposed, 0.5), torch.tensor([[0.5, 0.5]]).double())
    share = math.sqrt(SMALLEST_SHARE)
    assert float(geometric_mean(certain, certain.flip(1) * 0 + 0.5, 0.5)[0, 1]) == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("size", [8, 20, 40])
def test_minibatches_are_an_eighth_labelled_and_the_rest_does_not_repeat(size: int) -> None:
    whole = agreement()
    batches = list(whole.minibatches(size, seeded()))
    eighth = size // 8
    assert len(batches) == 90 // size
    assert all(len(batch) == size and bool(batch.known[:eighth].all()) for batch in batches)
    rest = torch.cat([batch.nodes[eighth:] for batch in batches])
    assert len(rest.unique()) == len(rest) == len(batches) * (size - eighth)
    assert not torch.equal(rest, rest.sort().values)
    for batch in batches:
        assert torch.equal(batch.shares, whole.shares[batch.nodes])
        assert torch.equal(batch.known, whole.known[batch.nodes])
        assert torch.equal(batch.confidence, whole.confidence[batch.nodes])
        assert torch.equal(batch.classes, whole.classes)


def test_two_passes_differ_and_all_labelled_examples_are_drawn() -> None:
    whole, generator = agreement(), seeded()
    first, second = (next(iter(whole.minibatches(40, generator))) for _ in range(2))
    assert not torch.equal(first.nodes, second.nodes)
    drawn = torch.cat([batch.nodes[:5] for _ in range(20) for batch in whole.minibatches(40, generator)])
    assert torch.equal(drawn.unique(), whole.known.nonzero().flatten())


def test_certainty_is_one_less_the_entropy_in_units_of_its_largest() -> None:
    shares = agreement().shares
    for row, found in zip(shares.tolist(), certainty(shares).tolist(), strict=True):
        entropy = -sum(p * math.log(p) for p in row if p > 0)
        assert found == pytest.approx(1 - entropy / math.log(3))
    assert float(certainty(torch.eye(4).double()[:1])) == 1.0
    assert float(certainty(torch.full((1, 5), 0.2).double())) == pytest.approx(0.0, abs=1e-12)


def test_quality_counts_the_unlabelled_examples_alone() -> None:
    shares = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]).double()
    whole = agreement_of(shares, torch.tensor([True, False, False, False]))
    found = whole.quality(torch.tensor([8, 3, 8, 3]))  # the label is wrong, and of the others the first is right
    assert found["right_pseudo_labels"] == pytest.approx(1 / 3)
    assert found["right_by_confidence"] == pytest.approx(1 / 2)  # confidences are 1, 0 and 1


def test_statistics_count_the_unlabelled_examples_alone() -> None:
    shares = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.55, 0.45], [0.1, 0.9]]).double()
    confidence = torch.tensor([1.0, 1.0, 0.9, 0.95, 0.2, 0.4], dtype=torch.float64)
    known = torch.tensor([True, True, False, False, False, False])
    counted = torch.where(confidence > 0.92, confidence, 0.0)  # what trains says nothing of how sure it is
    veto = torch.ones_like(confidence)
    nodes = torch.arange(6)
    sides = (nodes[:, None], shares[:, :0], torch.tensor([3, 8]))
    found = Agreement(nodes, shares, shares, veto, confidence, counted, known, *sides)
    points = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    method = prepared(points, torch.tensor([3, 8, -1, -1, -1, -1]), width=2)
    with torch.no_grad():
        method.head.weight.copy_(torch.eye(2))  # the head reads the class off the point: both labels are misnamed
    statistics = method.statistics(Metric.identity(2), points, found)
    assert statistics.keys() == {"confidence", "coverage@0.9", "head_agreement"}
    assert statistics["confidence"] == pytest.approx((0.9 + 0.95 + 0.2 + 0.4) / 4)
    assert statistics["coverage@0.9"] == 2 / 4
    assert statistics["head_agreement"] == 3 / 4  # the fourth is taken for the other class


@pytest.fixture
def named(make_clusters) -> tuple[Tensor, Tensor]:
    """Points of 3 clusters, some labelled with names that are not their numbers."""
    points, classes = make_clusters(0, 90, WIDTH, 3)
    return points, torch.where(torch.arange(90) < 15, 5 * classes + 3, -1)


def test_labelled_examples_are_certain(named) -> None:
    points, labels = named
    found = prepared(points, labels).constraints(points, labels)
    assert torch.equal(found.classes, torch.tensor([3, 8, 13]))
    assert torch.equal(found.known, labels >= 0)
    assert torch.equal(found.classes[found.targets][:15], labels[:15])
    assert torch.equal(found.confidence[:15], torch.ones(15).double())
    assert float(found.confidence[15:].max()) < 1.0


def test_the_head_has_a_say_once_it_was_trained(named) -> None:
    points, labels = named
    method = prepared(points, labels, head_share=0.3)
    nn.init.normal_(method.head.weight, generator=seeded(4))  # it starts at zero
    neighbors = nearest_neighbors(points, 6)
    cosines = (points[:, None] * points[neighbors]).sum(2)
    graph = class_posteriors(neighbors, labels, cosines.clamp_min(0) ** 3, 0.99, prior=0.1).shares[15:]
    head = (SHARPNESS * points @ method.head.weight.T + method.head.bias).detach().double().softmax(1)[15:]
    whole = method.constraints(points, labels)
    assert torch.allclose(whole.shares[15:], graph, atol=1e-5)
    batch = next(iter(whole.minibatches(16, seeded())))
    features = unit_features(method.views(points[batch.nodes]))
    method.eval().loss(Metric.identity(WIDTH), features, batch)
    assert torch.equal(method.constraints(points, labels).shares, whole.shares)  # looking is not training
    method.train().loss(Metric.identity(WIDTH), features, batch)
    after = method.constraints(points, labels).shares[15:]
    products = graph**0.7 * head.clamp_min(SMALLEST_SHARE) ** 0.3
    assert torch.allclose(after, products / products.sum(1, keepdim=True), atol=1e-5)
    assert not torch.allclose(after, graph, atol=0.01)


def test_the_graph_has_a_veto_where_it_is_less_sure_than_usual_for_the_class(named) -> None:
    points, labels = named
    graph = prepared(points, labels, veto=False).constraints(points, labels)  # no head yet
    found = prepared(points, labels, selective=False).constraints(points, labels)
    for name in range(3):
        mine = (graph.targets == name) & ~graph.known
        sure = graph.confidence[mine]
        for before, after in zip(sure.tolist(), found.confidence[mine].tolist(), strict=True):
            quartile = float(sure.sort().values[3 * len(sure) // 4])
            assert after == pytest.approx(before * min(1.0, before / quartile))
        assert bool((found.confidence[mine] < sure).any())
        assert bool((found.confidence[mine] == sure).any())
    assert torch.equal(found.weights, found.confidence)


def test_a_selective_method_counts_those_above_the_mean_of_their_class(named) -> None:
    points, labels = named
    every = prepared(points, labels, selective=False).constraints(points, labels)
    some = prepared(points, labels).constraints(points, labels)
    assert torch.equal(some.shares, every.shares)
    assert torch.equal(some.confidence, every.confidence)
    for name in range(3):
        mine = (every.targets == name) & ~every.known
        for before, after in zip(every.confidence[mine].tolist(), some.weights[mine].tolist(), strict=True):
            assert after == (before if before >= float(every.confidence[mine].mean()) else 0.0)
    assert torch.equal(some.weights[:15], torch.ones(15).double())


def naive_contrast(rows: Tensor, targets: list[int], weights: list[float], temperature: float) -> float:
    count, total = len(rows), 0.0
    rows = rows / rows.norm(dim=1, keepdim=True)
    for i in range(count):
        similar = [float(rows[i] @ rows[j]) / temperature for j in range(count)]
        others = sum(max(weights[a], FLOOR) * math.exp(similar[a]) for a in range(count) if a != i)
        positives = [j for j in range(count) if j != i and targets[j] == targets[i]]
        share = sum(weights[j] for j in positives)
        if share > 0:
            logs = sum(weights[j] * (similar[j] - math.log(others)) for j in positives)
            total -= weights[i] * logs / share
    return total / count


def test_loss_is_the_sum_of_its_four_terms() -> None:
    batch = agreement(6, labelled=2)
    points = torch.randn(6, WIDTH, generator=seeded())
    weigh = {"consistency": 0.7, "contrast": 1.3, "instance": 0.4}
    temperatures = {"contrast_temperature": 0.3, "instance_temperature": 0.6}
    method = prepared(points, batch.targets, **weigh, **temperatures).double()
    features = unit_features(torch.randn(12, WIDTH, generator=seeded(2), dtype=torch.float64))
    metric = Metric.random_orthonormal(WIDTH, 5, seeded(3))
    targets, weights = batch.targets.tolist(), batch.confidence.tolist()
    logits = 16.0 * features @ method.head.weight.detach().T + method.head.bias.detach()
    surprise = [-math.log(float(logits[row].softmax(0)[targets[row % 6]])) for row in range(12)]
    labelled = [row for row in range(6) if batch.known[row]]
    supervised = sum(surprise[row] for row in labelled) / 2
    consistency = sum(weights[row] * surprise[6 + row] for row in range(6)) / 6
    embedded = features @ metric.factor
    contrast = naive_contrast(embedded, targets * 2, weights * 2, 0.3)
    instance = naive_contrast(embedded, list(range(6)) * 2, [1.0] * 12, 0.6)
    expected = supervised + 0.7 * consistency + 1.3 * contrast + 0.4 * instance
    assert float(method.loss(metric, features, batch).detach()) == pytest.approx(expected, rel=1e-9)


def test_an_example_that_is_taken_for_nothing_teaches_nothing() -> None:
    whole = agreement(20, labelled=6, unsure=1)
    unsure = int(whole.confidence.argmin())
    points = torch.randn(20, WIDTH, generator=seeded())

    def gradients(**values: float) -> Tensor:
        method = prepared(points, whole.targets, **({"consistency": 0.0, "contrast": 0.0, "instance": 0.0} | values))
        nn.init.normal_(method.head.weight, generator=seeded(4))  # it starts at zero
        features = unit_features(torch.randn(40, WIDTH, generator=seeded(2))).requires_grad_()
        method.loss(Metric.identity(WIDTH), features, whole).backward()
        return features.grad.norm(dim=1)

    named_alike = gradients(consistency=1.0)
    assert float(named_alike[[unsure, 20 + unsure]].max()) < 1e-6 < float(named_alike[20:].max())
    drawn = gradients(contrast=1.0)
    sure = torch.cat([whole.confidence, whole.confidence]) > 0.5
    assert float(drawn[[unsure, 20 + unsure]].max()) < 5 * FLOOR * float(drawn[sure].mean())  # it repels at the floor
    assert float(gradients(instance=1.0)[unsure]) > 0  # it is still itself


def test_a_batch_without_labels_has_a_loss() -> None:
    points = torch.randn(10, WIDTH, generator=seeded())
    whole = agreement(10, labelled=0)
    method = prepared(points, whole.targets)
    assert math.isfinite(
        float(method.loss(Metric.identity(WIDTH), unit_features(method.views(points)), whole).detach())
    )


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((20, 6), "vectors"), ((20, 1, 8, 8), "digits"), ((20, 2, 8, 8), "digits"), ((20, 3, 8, 8), "objects")],
)
def test_views_fit_the_inputs(shape: tuple[int, ...], kind: str) -> None:
    inputs = torch.randn(shape, generator=seeded())
    labels = torch.arange(20) % 4 - 1
    method = prepared(inputs, labels)
    expected = (augmentation_for(kind, "weak"), augmentation_for(kind, "strong"))
    assert method.make_views.augmentations == expected
    torch.manual_seed(0)
    views = method.views(inputs)
    torch.manual_seed(0)
    centre, spread = (inputs.mean(0), inputs.std(0)) if kind == "vectors" else (0.0, 1.0)
    scaled = (inputs - centre) / spread
    weak, strong = (augment(scaled, augmentation_for(kind, strength)) for strength in ("weak", "strong"))
    assert torch.allclose(views, torch.cat([weak, strong]) * spread + centre, atol=1e-6)
    assert not torch.equal(weak, inputs)
    assert not torch.equal(weak, strong)


def test_named_views_win_over_the_shape() -> None:
    inputs, labels = torch.randn(20, 1, 8, 8, generator=seeded()), torch.arange(20) % 4 - 1
    method = prepared(inputs, labels, augmentation="objects")
    assert method.make_views.augmentations[0] == augmentation_for("objects", "weak")
    with pytest.raises(InputError, match="vectors know noise and drop alone"):
        prepared(inputs.flatten(1), labels, augmentation="digits")


@pytest.mark.parametrize("shape", [(20, 6), (20, 3, 8, 8), (20, 4, 5)])
def test_without_augmentation_inputs_of_any_shape_are_seen_twice(shape: tuple[int, ...]) -> None:
    inputs, labels = torch.randn(shape, generator=seeded()), torch.arange(20) % 4 - 1
    views = prepared(inputs, labels, augmentation="none").views(inputs)
    assert torch.equal(views, torch.cat([inputs, inputs]))


def test_it_trains_without_augmentation() -> None:
    points, classes = clusters([40, 40, 40], 0.2)
    trainer = trainer_of(points, first_labels(classes, [4, 4, 4]), {"augmentation": "none"}, epochs=4)
    trainer.fit()
    found = taken_for(trainer)
    assert float((found.targets == classes).double().mean()) > 0.95


def unknown_and_known(trainer: Trainer, classes: Tensor) -> tuple[float, list[float]]:
    """Mean confidence of the last cluster, which has no label, and of each of the others' unlabelled examples."""
    found = taken_for(trainer)
    means = [float(found.confidence[(classes == c) & ~found.known].mean()) for c in classes.unique()]
    return means[-1], means[:-1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("epochs", [0, 2, 8])
def test_a_cluster_without_a_label_stays_unsure(seed: int, epochs: int) -> None:
    points, classes = clusters([60] * 4, 0.1, seed)
    trainer = trainer_of(points, first_labels(classes, [6, 6, 6, 0]), epochs=epochs)
    trainer.fit()
    unknown, known = unknown_and_known(trainer, classes)
    assert unknown < 0.5 * min(known)


def test_a_rare_class_keeps_its_name() -> None:
    points, classes = clusters([540, 54, 6], 0.1)
    labels = first_labels(classes, [9, 3, 1])
    trainer = trainer_of(points, labels, batch_size=128)
    trainer.fit()
    found = taken_for(trainer)
    for name in range(3):
        unlabelled = (classes == name) & (labels < 0)
        assert float((found.targets[unlabelled] == name).double().mean()) > 0.9


@pytest.mark.parametrize("spread", [0.1, 0.2, 0.35])
def test_two_classes_apart_are_no_collapse(spread: float) -> None:
    points, classes = clusters([60, 60], spread)
    trainer = trainer_of(points, first_labels(classes, [5, 5]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        trainer.fit()
    assert float((taken_for(trainer).targets == classes).double().mean()) > 0.9


def test_training_makes_right_pseudo_labels_of_few_labels() -> None:
    points, classes = clusters([80] * 4, 0.3, seed=1)
    labels = first_labels(classes, [3] * 4)
    trainer = trainer_of(points, labels, epochs=30)

    def right() -> float:
        return float((taken_for(trainer).targets == classes)[labels < 0].double().mean())

    before = right()
    trainer.fit()
    assert right() > max(before, 0.9)


def test_a_projection_is_learned_with_the_network() -> None:
    points, classes = clusters([40, 40, 40], 0.2)
    trainer = trainer_of(points, first_labels(classes, [4, 4, 4]), {"components": 4}, epochs=4)
    result = trainer.fit()
    assert result.metric.factor.shape == (64, 4)
    assert result.metric.is_orthonormal()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"gamma": 1.0}, "gamma must lie strictly between 0 and 1, got 1.0"),
        ({"head_share": 1.1}, "head_share must be between 0 and 1, got 1.1"),
        ({"head_share": math.nan}, "head_share must be between 0 and 1, got nan"),
        ({"veto": 0.5}, "veto"),
        ({"consistency": math.inf}, "consistency must be a finite number of at least 0"),
        ({"contrast": -1.0}, "contrast must be a finite number of at least 0"),
        ({"instance": -1.0}, "instance must be a finite number of at least 0"),
        ({"components": -1}, "components must be a finite number of at least 0, got -1"),
        ({"contrast_temperature": 0.0}, "contrast_temperature must be a finite number above 0, got 0.0"),
        ({"instance_temperature": -0.1}, "instance_temperature must be a finite number above 0"),
        (
            {"augmentation": "sounds"},
            "augmentation must be one of auto, digits, .*, photographs, crops, vectors, none, got 'sounds'",
        ),
        ({"context": -1.0}, "context must be"),
        ({"neighbours": 0}, "neighbours must be at least 1"),
        ({"temperature": 0.1}, "has no setting 'temperature'"),
    ],
)
def test_bad_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_method("consensus", **changes)


def test_too_few_examples_for_the_graph_are_refused() -> None:
    points, classes = clusters([6, 6], 0.2)
    with pytest.raises(InputError, match=r"k must be below the number of examples in the graph \(12.*got 12"):
        trainer_of(points, first_labels(classes, [2, 2]), {"k": 12})


def test_a_batch_takes_the_neighbours_of_what_it_draws(named) -> None:
    points, labels = named
    found = prepared(points, labels, neighbours=4).constraints(points, labels)
    assert torch.equal(found.neighbours[:, 1:], nearest_neighbors(points, 3))
    batches = list(found.minibatches(18, seeded()))
    assert len(batches) == 90 // 18
    queries = []
    for batch in batches:
        assert bool(batch.known[:2].all())  # the eighth that is labelled comes first
        groups = batch.nodes[2:].reshape(4, 4)
        queries += groups[:, 0].tolist()
        assert torch.equal(groups, found.neighbours[groups[:, 0]])
    assert len(set(queries)) == len(queries)


def test_without_neighbours_batches_are_drawn_as_ever(named) -> None:
    points, labels = named
    found = prepared(points, labels).constraints(points, labels)
    batch = next(iter(found.minibatches(16, seeded(3))))
    generator = seeded(3)
    drawn = found.known.nonzero().flatten()[torch.randint(15, (5, 2), generator=generator)]
    order = torch.randperm(90, generator=generator)[: 5 * 14].reshape(5, 14)
    assert torch.equal(batch.nodes, torch.cat([drawn[0], order[0]]))


def test_context_adds_the_loss_of_stml_with_targets_of_the_averaged_network(named) -> None:
    points, labels = named
    method = prepared(points, labels, context=0.7, neighbours=3)
    plain = prepared(points, labels, neighbours=3)
    batch = next(iter(method.constraints(points, labels).minibatches(16, seeded())))
    views = unit_features(torch.randn(32, WIDTH, generator=seeded(1)))
    teacher = unit_features(torch.randn(32, WIDTH, generator=seeded(2)))
    taught = method.teach(teacher, batch)
    known = torch.where(batch.known, batch.targets, -1).repeat(2)
    targets = contextual_targets(teacher, batch.nodes.repeat(2), known)
    metric = Metric.identity(WIDTH)
    added = method.loss(metric, views, taught) - plain.loss(metric, views, batch)
    assert float(added.detach()) == pytest.approx(0.7 * float(relaxed_contrastive_loss(views, targets)), rel=1e-4)


def test_only_context_asks_for_the_averaged_network(named) -> None:
    points, labels = named
    data = TrainingData(points, labels)
    settings = training_settings("consensus", epochs=2, average=0.0, hold_back=0.0)
    encoder = build_encoder("linear", (WIDTH,), 0)
    assert not prepared(points, labels).taught
    Trainer(encoder, build_method("consensus"), data, settings)
    with pytest.raises(InputError, match=r"'consensus' learns from the running average .* average is 0"):
        Trainer(encoder, build_method("consensus", context=1.0), data, settings)
    taught = build_method("consensus", context=1.0, neighbours=4, k=6)
    settings = training_settings("consensus", epochs=2, hold_back=0.0, batch_size=32)
    found = Trainer(build_encoder("mlp", (WIDTH,), 0), taught, data, settings).fit()
    assert found.epochs == 2
