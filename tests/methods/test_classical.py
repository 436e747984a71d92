"""What the five classical methods have in common, and what makes each of them special."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers.objectives import objective
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.graph import nearest_neighbors
from semimetric.methods import METHODS, build_method, seraph
from semimetric.methods.pairs import PairMethod, Pairs, cycled
from semimetric.metric import Metric
from semimetric.training import Trainer, TrainingData, TrainingSettings, TrainingWarning

CLASSICAL = [name for name, kind in METHODS.items() if issubclass(kind, PairMethod)]
GRAPH = [name for name in CLASSICAL if METHODS[name].needs.graph]
WIDTH = 6


@pytest.fixture
def data(make_clusters) -> tuple[Tensor, Tensor]:
    points, classes = make_clusters(0, 60, WIDTH, 3)
    return points.double(), torch.where(torch.arange(60) < 15, classes, -1)


def learn(name: str, points: Tensor, labels: Tensor, **settings) -> Tensor:
    method = build_method(name, **settings)
    start = Metric.identity(points.shape[1])
    return method.update_metric(start, points, method.constraints(points, labels)).matrix


@pytest.mark.parametrize("name", CLASSICAL)
def test_metric_is_symmetric_and_positive_semi_definite(name: str, data) -> None:
    matrix = learn(name, *data)
    assert float((matrix - matrix.T).abs().max()) <= 1e-12 * float(matrix.abs().max())
    assert float(torch.linalg.eigvalsh(matrix)[0]) >= -1e-10 * float(matrix.abs().max())


@pytest.mark.parametrize("name", CLASSICAL)
def test_order_of_examples_does_not_matter(name: str, data) -> None:
    points, labels = data
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    # cyclic projections (apit) and descents (seraph) stop before the last digit, and on the way the order shows
    tolerance = {"apit": 5e-2, "seraph": 1e-6}.get(name, 1e-9)
    first, second = learn(name, points, labels), learn(name, points[order], labels[order])
    assert float((first - second).norm()) <= tolerance * float(first.norm())


@pytest.mark.parametrize("name", CLASSICAL)
def test_rotating_and_moving_the_features_leaves_distances_alone(name: str, data) -> None:
    points, labels = data
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)).double()).Q
    matrix = learn(name, points, labels)
    turned = learn(name, points @ rotation + 3.0, labels)
    expected = rotation.T @ matrix @ rotation
    assert float((turned - expected).norm()) <= 1e-5 * float(expected.norm())


@pytest.mark.parametrize("name", CLASSICAL)
def test_components_keep_the_largest_eigenvectors(name: str, data) -> None:
    values, vectors = torch.linalg.eigh(learn(name, *data))
    cut = learn(name, *data, components=2)
    assert torch.allclose(cut, (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T, atol=1e-6 * float(values[-1]))


@pytest.mark.parametrize("name", CLASSICAL)
def test_one_example_per_class_is_said_and_survived(name: str, data) -> None:
    points, labels = data
    single = torch.full_like(labels, -1)
    single[:3] = torch.arange(3)
    method = build_method(name)
    metric = method.update_metric(Metric.identity(WIDTH), points, method.constraints(points, single))
    assert torch.isfinite(metric.factor).all()
    guards = method.take_guards()
    assert "no class has two labelled examples" in guards["no_similar_pair"]
    assert ("prior_replaced" in guards) == (name in ("apllr", "apit"))


@pytest.mark.parametrize("name", CLASSICAL)
def test_duplicates_and_features_of_low_rank(name: str, data) -> None:
    points, labels = data
    doubled = torch.cat([points, points])
    flat = torch.cat([doubled, doubled[:, :2] @ torch.ones(2, 3).double(), torch.zeros(120, 1).double()], dim=1)
    known = torch.cat([labels, labels])
    matrix = learn(name, flat, known)
    assert torch.isfinite(matrix).all()
    distances = Metric.from_matrix(matrix).squared_distances(flat)
    assert float(distances[:60, 60:].diagonal().max()) <= 1e-9 * float(distances.max())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", CLASSICAL)
def test_labelled_examples_that_are_all_one_point(name: str, seed: int, make_clusters) -> None:
    """What rounding leaves of their differences must not be taken for a scatter."""
    points, classes = make_clusters(seed, 60, WIDTH, 3)
    points, labels = points.double() + 1 / 3, torch.where(torch.arange(60) < 15, classes, -1)
    points[labels >= 0] = points[0].clone()
    method = build_method(name)
    metric = method.update_metric(Metric.identity(WIDTH), points, method.constraints(points, labels))
    assert 1e-3 < float(metric.matrix.trace()) < 1e6
    guards = method.take_guards()
    assert ("labelled_coincide" in guards) == (name == "seraph")
    assert ("prior_replaced" in guards) == (name in ("apllr", "apit"))


@pytest.mark.parametrize("name", CLASSICAL)
def test_single_class_and_no_labels_are_refused(name: str) -> None:
    method = build_method(name)
    with pytest.raises(
        InputError, match=f"{name!r} needs labelled examples of at least 2 classes, all 2 are of class 4"
    ):
        method.check_labels(torch.tensor([4, -1, 4]))
    with pytest.raises(InputError, match="every label is -1"):
        method.check_labels(torch.tensor([-1, -1]))


@pytest.mark.parametrize("name", CLASSICAL)
def test_true_labels_help_and_shuffled_ones_do_not(name: str) -> None:
    """Classes differ in 3 of 24 directions of one variance, so that without labels no direction stands out."""
    gains = {True: 0.0, False: 0.0}
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        classes = torch.arange(240) % 3
        signal = 2.5 * torch.eye(3)[classes] + 0.5 * torch.randn(240, 3, generator=generator)
        points = torch.cat([signal, 1.28 * torch.randn(240, 21, generator=generator)], dim=1).double()
        points = points / points.norm(dim=1).mean()
        labels = torch.where(torch.arange(240) < 90, classes, -1)
        shuffled = labels.clone()
        shuffled[:90] = labels[torch.randperm(90, generator=generator)]
        plain = neighbour_accuracy(torch.eye(24).double(), points, classes)
        for true in gains:
            matrix = learn(name, points, labels if true else shuffled)
            gains[true] += (neighbour_accuracy(matrix, points, classes) - plain) / 4
    assert gains[True] > 0.05
    assert gains[False] < 0.6 * gains[True]


def neighbour_accuracy(matrix: Tensor, points: Tensor, classes: Tensor) -> float:
    """Of the examples that are never labelled, by their nearest other."""
    distances = Metric.from_matrix(matrix, tolerance=1e-6).squared_distances(points[90:])
    nearest = distances.fill_diagonal_(math.inf).argmin(1)
    return float((classes[90:][nearest] == classes[90:]).double().mean())


@pytest.mark.parametrize("name", GRAPH)
def test_more_neighbours_than_examples_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"k must be below the number of examples in the graph \(5.*got 7"):
        build_method(name, k=7).check_working_set(2, 3)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lrml", {}),
        ("lrml", {"normalized": True}),
        ("isdml", {}),
        ("apllr", {"affinities": "edges", "repulsion": 1.0}),
        ("apllr", {"affinities": "positive-edges", "repulsion": 1.0}),
        ("apllr", {"affinities": "absolute-edges", "repulsion": 1.0}),
    ],
)
def test_form_and_energy_equal_loops_over_the_graph(name: str, settings: dict, data) -> None:
    points, labels = data
    constraints = build_method(name, k=4, **settings).constraints(points, labels)
    edges, share = (constraints, 1.0) if isinstance(constraints, Pairs) else (constraints.edges, 0.5)
    metric = Metric(torch.randn(WIDTH, 3, generator=torch.Generator().manual_seed(2)).double())
    total = torch.zeros(WIDTH, WIDTH).double()
    for (i, j), weight, (first, second) in zip(edges.pairs, edges.weights, edges.scales, strict=True):
        v = first * points[i] - second * points[j]
        total += weight * torch.outer(v, v)
    expected = total / len(edges)
    assert float(edges.weights.abs().mean()) == pytest.approx(1.0)
    assert torch.allclose(constraints.form(points), share * expected, atol=1e-12)
    energy = constraints.energy(metric.transform(points))
    assert float(energy) == pytest.approx(float((metric.matrix * expected).sum()))
    if settings.get("affinities") in ("positive-edges", "absolute-edges") or name in ("lrml", "isdml"):
        assert float(torch.linalg.eigvalsh(constraints.form(points))[0]) >= -1e-12


def test_laplacian_energy_is_the_trace_with_the_laplacian(data) -> None:
    """Half the double sum of W_ij d2 is tr(M Z^T Lap Z), for both Laplacians of the binary graph."""
    points, labels = data
    neighbors = nearest_neighbors(points, 4)
    joined = torch.zeros(60, 60).double().scatter_(1, neighbors, 1.0)
    joined = torch.maximum(joined, joined.T)
    degrees = joined.sum(1)
    root = degrees.rsqrt().diag()
    forms = {False: degrees.diag() - joined, True: degrees.mean() * (torch.eye(60) - root @ joined @ root)}
    for normalized, laplacian in forms.items():
        constraints = build_method("lrml", k=4, normalized=normalized).constraints(points, labels)
        expected = points.T @ laplacian.double() @ points / len(constraints)
        assert torch.allclose(constraints.form(points), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["lrml", "isdml"])
def test_no_metric_of_determinant_one_is_better(name: str, data) -> None:
    points, labels = data
    method = build_method(name)
    constraints = method.constraints(points, labels)
    metric = method.update_metric(Metric.identity(WIDTH), points, constraints)
    assert float(torch.logdet(metric.matrix)) == pytest.approx(0.0, abs=1e-9)
    best = objective(method, metric, points, constraints)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 1e-1, 1.0):
        for _ in range(100):
            noise = size * torch.randn(WIDTH, WIDTH, generator=generator).double()
            turned = torch.matrix_exp(noise - noise.trace() / WIDTH * torch.eye(WIDTH).double())
            other = Metric(turned @ metric.factor)
            assert objective(method, other, points, constraints) >= best - 1e-12


@pytest.mark.parametrize("name", ["lrml", "isdml"])
def test_too_much_weight_on_dissimilar_pairs_is_capped_and_said(name: str, data) -> None:
    points, labels = data
    method = build_method(name, dissimilar_weight=100.0)
    constraints = method.constraints(points, labels)
    method.update_metric(Metric.identity(WIDTH), points, constraints)
    assert "dissimilar_weight 100 is above 0.5 of the weight" in method.take_guards()["dissimilar_weight_capped"]
    used = float(method.dissimilar_weight)
    assert 0 < used < 100
    method.dissimilar_weight.fill_(2 * used)  # exactly where the problem begins to be unbounded
    base, dissimilar = method._parts(points, constraints, points.shape[1])
    assert float(torch.linalg.eigvalsh(base - 2 * used * dissimilar)[0]) == pytest.approx(0.0, abs=1e-5)
    values, vectors = torch.linalg.eigh(base - 100 * dissimilar)
    costs = [float((ray(vectors, size) * (base - 100 * dissimilar)).sum()) for size in (1.0, 10.0, 100.0)]
    assert values[0] < 0
    assert costs[0] > costs[1] > costs[2]


def ray(vectors: Tensor, size: float) -> Tensor:
    """Determinant 1, stretched along the first eigenvector and shrunk along the others."""
    stretch = torch.full((WIDTH,), size ** (-1 / (WIDTH - 1))).double()
    stretch[0] = size
    return (vectors * stretch) @ vectors.T


def loop_means(embeddings: Tensor, classes: Tensor, term) -> tuple[Tensor, Tensor]:
    """Means of a function of the squared distances of similar and of dissimilar pairs, pair by pair."""
    sums, counts = [torch.zeros(()), torch.zeros(())], [0, 0]
    for i in range(len(classes)):
        for j in range(i):
            kind = int(classes[i] != classes[j])
            sums[kind] = sums[kind] + term((embeddings[i] - embeddings[j]).square().sum(), kind)
            counts[kind] += 1
    return sums[0] / counts[0], sums[1] / counts[1]


@pytest.mark.parametrize("name", CLASSICAL)
def test_the_loss_is_its_formula(name: str, data) -> None:
    points, labels = data
    eta = {"eta": 3.0, "mu": 0.7} if name == "seraph" else {}
    method = build_method(name, **eta)
    whole = method.constraints(points, labels)
    batch = next(iter(whole.minibatches(10, torch.Generator().manual_seed(0))))
    features = points[batch.nodes]
    metric = Metric(torch.randn(WIDTH, 4, generator=torch.Generator().manual_seed(1)).double())
    embeddings = features @ metric.factor
    known, classes = embeddings[batch.labelled], batch.classes
    lengths = [(embeddings[i] - embeddings[j]).square().sum() for i, j in batch.pairs.tolist()]
    if name == "seraph":
        surprise = loop_means(known, classes, lambda d, kind: torch.log1p(torch.exp((d - 3.0) * (1 - 2 * kind))))
        p = [torch.sigmoid(3.0 - d) for d in lengths]
        doubt = sum(-q * q.log() - (1 - q) * (1 - q).log() for q in p) / len(p)
        expected = 0.5 * (surprise[0] + surprise[1]) + 0.7 * doubt
    else:
        similar, dissimilar = loop_means(known, classes, lambda d, kind: d)
        weight = method.on_epoch_end().get("dissimilar_weight", method.settings.dissimilar_weight)
        graph = sum(w * d for w, d in zip(batch.weights, lengths, strict=True)) / len(lengths)
        expected = similar - weight * dissimilar + method.settings.graph_weight * graph
    assert float(method.loss(metric, features, batch)) == pytest.approx(10 * float(expected), rel=1e-9)


@pytest.mark.parametrize("name", ["seraph", "apllr", "apit"])
def test_what_is_weighed_against_the_features_has_no_unit(name: str, data) -> None:
    """Features times c: the metric divided by c^2 has the same distances."""
    points, labels = data
    settings = {"trace_weight": 0.1} if name == "seraph" else {"graph_weight": 3.0}
    matrix = learn(name, points, labels, **settings)
    scaled = learn(name, 10 * points, labels, **settings)
    for learned in (matrix, scaled):
        learned /= learned.trace()
    assert float((matrix - scaled).norm()) <= 1e-3 * float(matrix.norm())


def test_fewer_components_than_directions_in_which_examples_differ(data) -> None:
    """M is largest where nothing differs; what is kept must not be that."""
    points, labels = data
    flat = torch.cat([points, torch.zeros(60, 6).double()], dim=1)
    for name in CLASSICAL:
        method = build_method(name, components=3)
        metric = method.update_metric(Metric.identity(12), flat, method.constraints(flat, labels))
        assert "differ along 6 of 12 directions only" in method.take_guards()["low_rank"]
        assert float(metric.transform(flat).var(0).min()) > 1e-6


@pytest.mark.parametrize("name", ["lrml", "isdml"])
@pytest.mark.parametrize("given", [{}, {"dissimilar_weight": 100.0}, {"ridge": 1e-3}])
def test_fewer_examples_than_features_have_the_same_closed_form(name: str, given: dict[str, float]) -> None:
    """The metric is found in the span of the examples; here B is written out for all features, and inverted."""
    points = torch.randn(14, 40, generator=torch.Generator().manual_seed(0)).double() + 2.0
    labels = torch.tensor([0, 1] * 4 + [-1] * 6)
    method = build_method(name, k=4, **given)
    constraints = method.constraints(points, labels)
    metric = method.update_metric(Metric.identity(40), points, constraints)
    base, dissimilar = method._parts(points, constraints, 40)
    form = base - method.dissimilar_weight * dissimilar
    expected = (torch.logdet(form) / 40).exp() * torch.linalg.inv(form)
    assert float((metric.matrix - expected).norm()) <= 1e-9 * float(expected.norm())
    assert "differ along 13 of 40 directions only" in method.take_guards()["low_rank"]
    lengths = metric.factor.norm(dim=0)
    assert bool((lengths[:-1] >= lengths[1:] - 1e-12).all())
    few = build_method(name, k=4, components=20, **given).update_metric(Metric.identity(40), points, constraints)
    assert few.factor.shape == (40, 20)
    torch.testing.assert_close(few.squared_distances(points), metric.squared_distances(points))


def test_within_its_bound_the_weight_is_used_as_given(data) -> None:
    points, labels = data
    method = build_method("lrml", dissimilar_weight=0.01)
    method.update_metric(Metric.identity(WIDTH), points, method.constraints(points, labels))
    assert float(method.dissimilar_weight) == 0.01
    assert method.take_guards() == {}


def test_flat_directions_are_said_where_there_is_no_ridge(data) -> None:
    points, labels = data
    flat = torch.cat([points, torch.zeros(60, 2).double()], dim=1)
    method = build_method("lrml", ridge=0.0)
    method.update_metric(Metric.identity(WIDTH + 2), flat, method.constraints(flat, labels))
    guards = method.take_guards()
    assert "do not differ along 2 of 8 directions" in guards["flat_directions"]
    assert "differ along 6 of 8 directions only" in guards["low_rank"]


@pytest.mark.parametrize("solver", ["gradient", "convex"])
def test_a_metric_that_vanishes_is_replaced_and_said(solver: str, data) -> None:
    points, labels = data
    method = build_method("seraph", trace_weight=1e3, solver=solver)
    metric = method.update_metric(Metric.identity(WIDTH), points, method.constraints(points, labels))
    assert "trace_weight 1000 outweighs the pairs" in method.take_guards()["metric_vanished"]
    assert torch.allclose(metric.matrix, metric.matrix[0, 0] * torch.eye(WIDTH).double())


def test_seraph_solvers_agree(data) -> None:
    points, labels = data
    costs = []
    for solver in ("gradient", "convex"):
        method = build_method("seraph", eta=3.0, solver=solver, iterations=500)
        constraints = method.constraints(points, labels)
        metric = method.update_metric(Metric.identity(WIDTH), points, constraints)
        costs.append(objective(method, metric, points, constraints))
    assert costs[0] == pytest.approx(costs[1], rel=1e-3)


@pytest.mark.parametrize(("solver", "iterations", "tolerance"), [("gradient", 3, 1e-9), ("convex", 30, 1e-4)])
@pytest.mark.parametrize("components", [0, 4])
def test_seraph_on_a_wide_table_takes_the_same_steps_on_small_matrices(
    components: int, solver: str, iterations: int, tolerance: float, make_clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From round to round of the convex problems rounding grows; they end at the same cost."""
    points, classes = make_clusters(0, 12, 40, 3)
    points, labels = points.double(), torch.where(torch.arange(12) < 6, classes, -1)
    costs = []
    for wide in (256, 20):
        monkeypatch.setattr(seraph, "WIDE", wide)
        method = build_method("seraph", components=components, solver=solver, iterations=iterations)
        start = method.initial_metric(40, torch.Generator().manual_seed(0))
        constraints = method.constraints(points, labels)
        metric = method.update_metric(start, points, constraints)
        costs.append(objective(method, metric, points, constraints))
    assert costs[1] == pytest.approx(costs[0], rel=tolerance)


def test_seraph_descends_from_a_metric_of_few_features_on_small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its factor is a part of the identity, which is no multiple of the identity outside of the examples."""
    points = torch.randn(12, 40, generator=torch.Generator().manual_seed(0)).double()
    method, metric = build_method("seraph", iterations=3), Metric(torch.eye(40, 4, dtype=torch.float64))
    problem, _ = method._problem(points, method.constraints(points, torch.tensor([0, 1, 2] * 2 + [-1] * 6)))
    monkeypatch.setattr(seraph, "WIDE", 20)
    span = seraph._span(points, metric)
    whole, _ = method._lowest(problem, (metric.matrix, metric.matrix), None)
    inside, rest = method._lowest(problem, (metric.matrix, metric.matrix), span)
    lifted = span.inside @ inside @ span.inside.T + rest * span.outside @ span.outside.T
    torch.testing.assert_close(lifted, whole)


def test_seraph_survives_huge_distances(data) -> None:
    points, labels = data
    method = build_method("seraph")
    constraints = method.constraints(points, labels)
    loss = method.loss(Metric(100.0 * torch.eye(WIDTH).double()), points.requires_grad_(), constraints)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(points.grad).all()


BAD = {
    "components": -1,
    "k": 0,
    "graph_weight": -1.0,
    "dissimilar_weight": -1.0,
    "bounded_share": 1.0,
    "ridge": -0.1,
    "bandwidth_steps": 0.0,
    "gamma": 1.0,
    "affinities": "some",
    "indefinite": "ignore",
    "shrinkage": 0.0,
    "slack": 0.0,
    "sweeps": 0,
    "repulsion": -1.0,
    "eta": 0.0,
    "mu": -1.0,
    "trace_weight": -1.0,
    "solver": "magic",
    "iterations": 0,
    "most_pairs": 0,
    "normalized": 1,
}


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field.name) for name in CLASSICAL for field in dataclasses.fields(METHODS[name].Settings)],
)
def test_every_setting_refuses_a_bad_value_and_another_type(name: str, field: str) -> None:
    for value in (BAD[field], [1]):
        with pytest.raises(InputError, match=field):
            build_method(name, **{field: value})


def test_a_batch_holds_classes_alike_two_of_each_at_a_time() -> None:
    classes = torch.arange(1000) % 50
    order = cycled(classes, torch.Generator().manual_seed(0))
    assert torch.equal(order.sort().values, torch.arange(1000))
    for start in range(0, 1000, 100):
        _, counts = classes[order[start : start + 100]].unique(return_counts=True)
        assert counts.tolist() == [2] * 50
    few = classes[order[:20]].reshape(10, 2)
    assert torch.equal(few[:, 0], few[:, 1])


def test_batches_know_all_labelled_examples_where_they_fit(data) -> None:
    points, labels = data
    constraints = build_method("lrml", k=5).constraints(points, labels)
    for batch in constraints.minibatches(20, torch.Generator().manual_seed(0)):
        assert len(batch.labelled) == 15
        assert torch.equal(labels[batch.nodes[batch.labelled]], batch.classes)
        original = constraints.pairs[[pair_number(constraints, batch, n) for n in range(20)]]
        assert torch.equal(batch.nodes[batch.pairs], original)


def pair_number(whole: Pairs, batch: Pairs, position: int) -> int:
    wanted = batch.nodes[batch.pairs[position]]
    return int((whole.pairs == wanted).all(1).nonzero())


def test_a_run_says_a_guard_once_and_logs_every_epoch(make_clusters, tmp_path) -> None:
    points, classes = make_clusters(1, 60, 8, 3)
    labels = torch.where(torch.arange(60) < 12, classes, -1)
    torch.manual_seed(0)
    encoder = torch.nn.Linear(8, 8)
    trainer = Trainer(encoder, build_method("lrml"), TrainingData(points, labels), TrainingSettings(epochs=3, lr=1e-9))
    records = []
    trainer.progress.epoch = records.append
    with pytest.warns(TrainingWarning, match="problem becomes unbounded") as caught:
        result = trainer.fit()
    assert len(caught) == 1
    assert all(0 < record["dissimilar_weight"] < 1 for record in records[1:])
    assert [record.get("guards") for record in records] == [None] + 3 * [["dissimilar_weight_capped"]]
    assert result.guards == ("dissimilar_weight_capped",)
