"""APLLR and APIT: the affinities they use, and what is kept of them in an indefinite form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from semimetric.graph import propagate_affinities, propagated_affinity_matrix
from semimetric.methods import build_method
from semimetric.methods.propagated import ON_FEATURES
from semimetric.metric import Metric, logdet_divergence
from semimetric.training import Trainer, TrainingData, TrainingSettings

WIDTH = 6


@pytest.fixture
def data(make_clusters) -> tuple[Tensor, Tensor]:
    points, classes = make_clusters(0, 60, WIDTH, 3)
    return points.double(), torch.where(torch.arange(60) < 15, classes, -1)


@pytest.fixture
def repelled(make_clusters) -> tuple[Tensor, Tensor]:
    """Ten classes of two labels each: nearly every labelled pair repels, and the form has negative directions."""
    points, _ = make_clusters(0, 40, WIDTH, 3)
    return points.double(), torch.where(torch.arange(40) < 20, torch.arange(40) // 2, -1)


def test_negative_edges_draw_to_the_opposite_where_asked(data) -> None:
    points, labels = data
    constraints = build_method("apllr", k=4, affinities="absolute-edges", repulsion=1.0).constraints(points, labels)
    affinities = propagate_affinities(constraints.neighbors, labels)
    assert float(affinities.min()) < 0
    expected = 0.0
    for i, row in enumerate(constraints.neighbors.tolist()):
        for j, w in zip(row, affinities[i].tolist(), strict=True):
            v = points[i] + points[j] if w < 0 else points[i] - points[j]
            expected += abs(w) * float(v @ v)
    assert float(constraints.energy(points)) == pytest.approx(expected / float(affinities.abs().sum()))


@pytest.mark.parametrize("affinities", ["all", "edges"])
def test_on_a_complete_graph_edges_are_all_pairs(affinities: str, data) -> None:
    """Up to the diagonal of the affinities, which no edge has and the sum of magnitudes counts."""
    points, labels = data
    graph = build_method("apllr", k=59, affinities=affinities, repulsion=1.0).constraints(points, labels)
    dense = propagated_affinity_matrix(graph.neighbors, labels)
    laplacian = dense.sum(1).diag() - dense
    expected = points.T @ laplacian @ points
    form = graph.form(points)
    ratio = float((form * expected).sum() / expected.square().sum())
    assert torch.allclose(form, ratio * expected, rtol=1e-6, atol=1e-9)
    outside = dense.abs().sum() - (dense.diagonal().abs().sum() if affinities == "edges" else 0.0)
    assert ratio * float(outside) == pytest.approx(1.0, rel=1e-9 if affinities == "edges" else 0.5)


@pytest.mark.parametrize("name", ["apllr", "apit"])
def test_without_a_graph_the_prior_is_the_metric(name: str, data) -> None:
    points, labels = data
    method = build_method(name, graph_weight=0.0)
    constraints = method.constraints(points, labels)
    metric = method.update_metric(Metric.identity(WIDTH), points, constraints)
    prior, _ = method._problem(points, constraints)
    assert torch.allclose(metric.matrix, prior, atol=1e-10)
    assert float(prior.trace()) == pytest.approx(WIDTH)


@pytest.mark.parametrize("name", ["apllr", "apit"])
def test_the_form_is_that_of_all_propagated_affinities(name: str, data) -> None:
    points, labels = data
    constraints = build_method(name, repulsion=1.0).constraints(points, labels)
    affinities = propagated_affinity_matrix(constraints.neighbors, labels)
    laplacian = affinities.sum(1).diag() - affinities
    found = constraints.form(points)
    expected = points.T @ laplacian @ points
    ratio = found / expected
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-5)
    assert 0.5 < float(ratio[0, 0] * affinities.abs().sum()) <= 1.0 + 1e-6


def test_an_indefinite_form_is_capped_and_said_or_clipped(repelled) -> None:
    points, labels = repelled
    capped = build_method("apllr", indefinite="cap", graph_weight=1e3, k=5, repulsion=1.0)
    constraints = capped.constraints(points, labels)
    metric = capped.update_metric(Metric.identity(WIDTH), points, constraints)
    assert "make the graph's form indefinite" in capped.take_guards()["graph_weight_capped"]
    assert torch.isfinite(metric.factor).all()
    prior, form = capped._problem(points, constraints)
    assert float(torch.linalg.eigvalsh(form)[0]) < 0
    assert logdet_divergence(metric.matrix, prior) < math.inf
    clipped = build_method("apllr", graph_weight=1e3, k=5, repulsion=1.0)
    clipped.update_metric(Metric.identity(WIDTH), points, constraints)
    guards = clipped.take_guards()
    assert "graph_weight_capped" not in guards
    assert "its negative part" in guards["form_clipped"]


@pytest.mark.parametrize("name", ["apllr", "apit"])
def test_the_kept_share_of_a_clipped_form_is_that_of_its_positive_eigenvalues(name: str, data) -> None:
    points, labels = data
    labels = torch.where(torch.arange(60) < 6, labels, -1)
    method = build_method(name, k=5, repulsion=1.0)
    assert method.on_epoch_end() == {}
    constraints = method.constraints(points, labels)
    method.update_metric(Metric.identity(WIDTH), points, constraints)
    values = torch.linalg.eigvalsh(constraints.form(points))
    expected = float(values.clamp_min(0).sum() / values.abs().sum())
    assert 0 < expected < 1
    assert method.on_epoch_end()["graph_term_kept"] == pytest.approx(expected, abs=1e-12)
    assert f"its negative part, {100 * (1 - expected):.0f} % of" in method.take_guards()["form_clipped"]


def test_the_kept_share_of_a_capped_weight(repelled) -> None:
    points, labels = repelled
    shares = []
    for weight in (1e3, 1e4):
        method = build_method("apllr", k=5, indefinite="cap", graph_weight=weight, repulsion=1.0)
        method.update_metric(Metric.identity(WIDTH), points, method.constraints(points, labels))
        shares.append(method.on_epoch_end()["graph_term_kept"])
        assert f"{shares[-1] * weight:.3g} is used instead" in method.take_guards()["graph_weight_capped"]
    assert 0 < shares[1] == pytest.approx(shares[0] / 10)


@pytest.mark.parametrize(
    "settings",
    [
        {"repulsion": 0.0},
        {"repulsion": 0.0, "affinities": "edges"},
        {"affinities": "positive-edges"},
        {"affinities": "absolute-edges"},
        {"indefinite": "cap", "graph_weight": 1e-6},
        {"indefinite": "cap", "graph_weight": 0.0},
    ],
)
def test_what_is_not_touched_is_kept_whole(settings: dict, repelled) -> None:
    points, labels = repelled
    method = build_method("apllr", **({"k": 5, "repulsion": 1.0} | settings))
    method.update_metric(Metric.identity(WIDTH), points, method.constraints(points, labels))
    assert method.on_epoch_end()["graph_term_kept"] > 0.9
    assert not {"form_clipped", "graph_weight_capped"} & {*method.take_guards()}


@pytest.mark.parametrize("name", ["apllr", "apit"])
@pytest.mark.parametrize("seed", range(3))
def test_on_features_the_graph_counts_and_nearly_all_of_it_is_kept(name: str, seed: int) -> None:
    """Ten classes without structure and ten labels of each: of the original's form nothing is positive."""
    points = torch.randn(200, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    labels = torch.where(torch.arange(200) < 100, torch.arange(200) % 10, -1)
    kept, moved = [], []
    fast = {"sweeps": 2} if name == "apit" else {}  # the prior has no part in what is kept
    for changes in (ON_FEATURES["mnist"], {}):
        method = build_method(name, **changes, **fast)
        constraints = method.constraints(points, labels)
        metric = method.update_metric(Metric.identity(16), points, constraints)
        kept.append(method.on_epoch_end()["graph_term_kept"])
        prior, _ = method._problem(points, constraints)
        moved.append(float((metric.matrix - prior).norm() / prior.norm()))
    assert kept[0] > 0.95
    assert kept[1] < 0.05
    assert moved[0] > 0.05 > moved[1]


@pytest.mark.parametrize("name", ["apllr", "apit"])
def test_more_is_kept_than_with_the_originals_repulsion_where_every_pair_repels(name: str, repelled) -> None:
    points, labels = repelled
    kept = []
    for changes in ({"repulsion": 1.0}, {"repulsion": 0.1}, {"repulsion": 0.0}):
        method = build_method(name, k=5, **changes)
        method.update_metric(Metric.identity(WIDTH), points, method.constraints(points, labels))
        kept.append(method.on_epoch_end()["graph_term_kept"])
    assert kept[0] < 0.01
    assert 0.5 < kept[1] < kept[2] == 1.0


def test_less_repulsion_keeps_more(data) -> None:
    points, labels = data
    kept = []
    for repulsion in (1.0, 0.3, 0.1, 0.0):
        method = build_method("apllr", k=5, repulsion=repulsion)
        constraints = method.constraints(points, labels)
        expected = propagate_affinities(constraints.neighbors, labels, repulsion=repulsion).flatten()
        assert torch.allclose(constraints.edges.weights, expected / expected.abs().mean())
        method.update_metric(Metric.identity(WIDTH), points, constraints)
        kept.append(method.on_epoch_end()["graph_term_kept"])
    assert kept == sorted(kept)
    assert kept[0] < 0.5 < kept[-1] == 1.0


def test_a_form_without_a_positive_direction_leaves_the_prior_alone(repelled) -> None:
    points, labels = repelled
    method = build_method("apllr", k=5, repulsion=1.0)
    constraints = method.constraints(points, labels)
    assert float(torch.linalg.eigvalsh(constraints.form(points))[-1]) < 0
    method.update_metric(Metric.identity(WIDTH), points, constraints)
    assert method.on_epoch_end()["graph_term_kept"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("metric_every", ["epoch", "batch"])
@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_every_epoch_logs_what_is_kept(metric_every: str, make_clusters) -> None:
    points, classes = make_clusters(1, 60, 8, 3)
    labels = torch.where(torch.arange(60) < 12, classes, -1)
    method = build_method("apllr", repulsion=1.0)
    settings = TrainingSettings(epochs=2, lr=0.0, batch_size=50, metric_every=metric_every)
    trainer = Trainer(torch.nn.Linear(8, 8), method, TrainingData(points, labels), settings)
    records: list[dict] = []
    trainer.progress.epoch = records.append
    trainer.fit()
    assert [0 <= record["graph_term_kept"] < 1 for record in records[1:]] == [True, True]


def test_a_prior_that_is_stopped_early_is_said(data) -> None:
    points, labels = data
    guards, priors = [], []
    for sweeps in (1, 500, 5000):
        method = build_method("apit", sweeps=sweeps)
        priors.append(method._problem(points, method.constraints(points, labels))[0])
        guards.append(method.take_guards())
    assert "did not converge in 1 sweeps" in guards[0]["prior_not_settled"]
    assert "prior_not_settled" not in guards[1]
    assert torch.equal(priors[1], priors[2])
    assert not torch.allclose(priors[0], priors[1])
