"""DeepCluster: k-means clusters of the features serve as classes.

Each epoch clusters the whitened features and trains a new head on them, with all clusters drawn equally often. The page
in ``docs/methods`` has the formulae and lists the differences from the original.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from semimetric.core.checks import check_at_least, check_choice, check_positive
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.data import preset_views
from semimetric.data.stored import Inputs
from semimetric.data.views import AugmentationStrength
from semimetric.encoders import unit_features
from semimetric.graph.clustering import kmeans
from semimetric.methods.baseline import HEAD_DEVIATION, ON_VIEWS, Classifier, Targets, ViewSettings, linear_head
from semimetric.methods.defaults import LR, extended
from semimetric.metric import Metric, whitening

ITERATIONS = 20  # of k-means, with a single start, as in the original


@dataclass(frozen=True)
class Clusters(Targets):
    """Examples (n,), the cluster of each (n,), and which of the K clusters are not empty (K,)."""

    filled: Tensor

    @property
    def sizes(self) -> Tensor:
        """(K,) number of examples in each cluster."""
        return torch.bincount(self.targets, minlength=len(self.filled))

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Clusters]:
        """``n // size`` batches; each draw takes a random cluster, whatever its size, then a random example of it."""
        sizes = self.sizes.cpu()
        members, starts = self.targets.cpu().argsort(stable=True), sizes.cumsum(0) - sizes
        draws = len(self) // size * size
        filled = sizes.nonzero().flatten()
        cluster = filled[torch.randint(len(filled), (draws,), generator=generator)]
        place = (torch.rand(draws, generator=generator, dtype=torch.float64) * sizes[cluster]).long()
        for rows in members[starts[cluster] + place].to(self.nodes.device).reshape(-1, size):
            yield Clusters(self.nodes[rows], self.targets[rows], self.filled)

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Share of examples that belong to the most frequent class of their cluster."""
        names, numbers = torch.unique(classes[self.nodes], return_inverse=True)
        cells = torch.bincount(self.targets * len(names) + numbers, minlength=len(self.filled) * len(names))
        return {"purity": float(cells.reshape(-1, len(names)).amax(1).sum()) / len(self)}


@dataclass(frozen=True)
class DeepClusterSettings(ViewSettings):
    """Hyper-parameters; the original uses 10,000 clusters for the 1,000 classes of ImageNet."""

    clusters: int = setting(
        100, "Number of k-means clusters, about ten times the expected classes; at most all examples."
    )
    pca: int = setting(256, "Principal components to whiten and cluster, at most the features' d.")
    views: AugmentationStrength = setting(
        "weak", "Strength of the views; strong views make the task harder, which helps on colour images."
    )
    head_rate: float = setting(
        1.0, "Learning rate of the head under Adam, as a multiple of lr; a new head is trained in every epoch."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.clusters, 2, "clusters")
        check_at_least(self.pca, 1, "pca")
        check_choice(self.views, ("weak", "strong"), "views")
        check_positive(self.head_rate, "head_rate")


class DeepCluster(Classifier[Clusters]):
    """Cross-entropy of a linear head (l, K) over the clusters of this epoch.

    ``assignment`` (N,) is the latest clustering and ``previous`` that of the epoch before, -1 if there is none.
    ``epoch`` seeds k-means. ``fresh`` is the new head, which the first of an epoch's ``steps`` puts in place.
    """

    name = "deepcluster"
    summary = "k-means clusters of the features as classes, renewed every epoch"
    reference = "Caron, Bojanowski, Joulin and Douze, ECCV 2018"
    follows_examples = True
    space = LR | {"clusters": Range(5, 200, log=True)}
    defaults_on = extended(  # with weak views, or too few steps of the head, recall fell on CIFAR-10
        ON_VIEWS,
        {
            "digits": {"passes": 10, "lr": 3e-3, "epochs": 8},
            "cifar10": {"views": "strong", "head_rate": 10.0, "passes": 4, "epochs": 15},
        },
    )
    Settings = DeepClusterSettings
    settings: DeepClusterSettings
    fresh: Tensor
    epoch: Tensor
    steps: Tensor
    assignment: Tensor
    previous: Tensor

    def on_fit_begin(self, inputs: Inputs, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Build the head, with at most one cluster per example, and the views."""
        clusters = min(self.settings.clusters, len(inputs))
        self.head = linear_head(self.embedding_width(width), clusters, generator)
        self.register_buffer("fresh", self.head.weight.detach().clone(), persistent=False)
        for name in ("epoch", "steps"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        for name in ("assignment", "previous"):
            self.register_buffer(name, torch.full((len(inputs),), -1))
        self.make_views = preset_views(inputs, self.settings.augmentation, (self.settings.views,))

    def on_epoch_begin(self, epoch: int) -> None:
        """Draw a new head, since cluster indices change from epoch to epoch."""
        self.epoch.fill_(epoch)
        self.previous.copy_(self.assignment)
        self.fresh.normal_(std=HEAD_DEVIATION / self.settings.head_rate, generator=self.draws)
        self.steps.zero_()

    @torch.no_grad()
    def constraints(self, features: Tensor, labels: Tensor) -> Clusters:
        """Cluster the features, with the seed of this epoch."""
        points = whitened(features, self.settings.pca)
        found = kmeans(points, len(self.head.bias), int(self.epoch), restarts=1, iterations=ITERATIONS)
        self.assignment.copy_(found.assignment)
        filled = torch.bincount(found.assignment, minlength=len(self.head.bias)) > 0
        return Clusters(torch.arange(len(points), device=points.device), found.assignment, filled)

    def loss(self, metric: Metric, features: Tensor, constraints: Clusters) -> Tensor:
        """Mean cross-entropy over the clusters that are not empty.

        Adam moves each weight of the head by about lr in a step. Weights ``head_rate`` times smaller with points
        ``head_rate`` times larger give the same initial logits, which change ``head_rate`` times faster.
        """
        if self.training:
            self._renew_head()
        logits = self.logits(metric, features, self.settings.head_rate)
        return cross_entropy(logits.masked_fill(~constraints.filled, -math.inf), constraints.targets)

    @torch.no_grad()
    def _renew_head(self) -> None:
        """Replace the head in the first step of an epoch; before it the averaged weights may be loaded."""
        first = self.steps == 0
        self.head.weight.copy_(torch.where(first, self.fresh, self.head.weight))
        self.head.bias.mul_(~first)
        self.steps += 1

    def statistics(self, metric: Metric, features: Tensor, constraints: Clusters) -> dict[str, float]:
        """Number of non-empty clusters, share of examples in the largest, and NMI with the previous clustering."""
        sizes = constraints.sizes
        found = {"clusters": float((sizes > 0).sum()), "largest_cluster": float(sizes.max()) / len(constraints)}
        if bool((self.previous < 0).any()):
            return found
        return found | {"nmi_with_last": mutual_information(constraints.targets, self.previous)}


def whitened(features: Tensor, components: int) -> Tensor:
    """Unit rows (N, p) of whitened principal components, p at most ``components``, the width d and N - 1."""
    most = min(components, features.shape[1], len(features) - 1)
    return unit_features(whitening(features, most).transform(features - features.mean(0)))


def mutual_information(first: Tensor, second: Tensor) -> float:
    """NMI of two clusterings (N,), 2 I / (H + H): 1 if they are equal up to names, 0 if independent."""
    pairs = first * (second.max() + 1) + second
    total, joint = entropy(first) + entropy(second), entropy(pairs)
    return min(max(2.0 * (total - joint) / total, 0.0), 1.0) if total > 0 else 1.0


def entropy(clusters: Tensor) -> float:
    """Entropy of a clustering (N,) in nats."""
    counts = torch.unique(clusters, return_counts=True)[1]
    return float(torch.special.entr(counts.double() / len(clusters)).sum())
