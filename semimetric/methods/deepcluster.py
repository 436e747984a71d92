"""Clusters of the features are the classes that a network learns to tell, and better features make better clusters.

Once per epoch the whitened features are clustered, and a new head learns the clusters from views drawn as often from
each. The page in ``docs/methods`` has the formulae and says where it departs from the original.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from semimetric.core.checks import check_choice, check_positive
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.data import VIEW_HELP, VIEW_KINDS, ViewKind, preset_views
from semimetric.data.views import AugmentationStrength
from semimetric.encoders import unit_features
from semimetric.graph.clustering import kmeans
from semimetric.methods.base import Needs
from semimetric.methods.baseline import (
    HEAD_DEVIATION,
    Baseline,
    BaselineSettings,
    head_logits,
    linear_head,
    unit_points,
)
from semimetric.metric import Metric, whitening

ITERATIONS = 20
"""Of k-means, from a single start, as in the original."""


@dataclass(frozen=True)
class Clusters:
    """Examples (n,), the cluster of each (n,), and which of the K clusters have an example at all (K,)."""

    nodes: Tensor
    targets: Tensor
    filled: Tensor

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def sizes(self) -> Tensor:
        """(K,) number of examples in each cluster."""
        return torch.bincount(self.targets, minlength=len(self.filled))

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Clusters]:
        """Batches of ``size`` draws, as many as examples would fill: a random cluster, then a random example of it.

        Drawn equally often, no cluster pays for being small, and one that holds nearly everything gains nothing.
        """
        sizes = self.sizes.cpu()
        members, starts = self.targets.cpu().argsort(stable=True), sizes.cumsum(0) - sizes
        draws = len(self) // size * size
        filled = sizes.nonzero().flatten()
        cluster = filled[torch.randint(len(filled), (draws,), generator=generator)]
        place = (torch.rand(draws, generator=generator, dtype=torch.float64) * sizes[cluster]).long()
        for rows in members[starts[cluster] + place].to(self.nodes.device).reshape(-1, size):
            yield Clusters(self.nodes[rows], self.targets[rows], self.filled)

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Share of examples that are of the commonest class of their cluster."""
        names, numbers = torch.unique(classes[self.nodes], return_inverse=True)
        cells = torch.bincount(self.targets * len(names) + numbers, minlength=len(self.filled) * len(names))
        return {"purity": float(cells.reshape(-1, len(names)).amax(1).sum()) / len(self)}


@dataclass(frozen=True)
class DeepClusterSettings(BaselineSettings):
    """Hyper-parameters; the original has 10,000 clusters for the 1,000 classes of ImageNet."""

    clusters: int = setting(
        100, "Clusters of k-means, some ten times as many as classes are expected; at most all examples."
    )
    pca: int = setting(256, "Principal components that are whitened and clustered, at most the features' d.")
    augmentation: ViewKind = setting("auto", VIEW_HELP)
    views: AugmentationStrength = setting(
        "weak",
        "Strength of the views that are to be told as the cluster of their example: weak ones ask for little that the "
        "clustered features do not have already; strong ones, of images in colour, ask for more.",
    )
    head_rate: float = setting(
        1.0, "How many times as fast as with lr alone the head learns, under Adam; a new one has an epoch to learn all."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters < 2:
            raise InputError(f"clusters must be at least 2, to be told from one another, got {self.clusters}.")
        if self.pca < 1:
            raise InputError(f"pca must be at least 1, got {self.pca}.")
        check_choice(self.augmentation, VIEW_KINDS, "augmentation")
        check_choice(self.views, ("weak", "strong"), "views")
        check_positive(self.head_rate, "head_rate")


class DeepCluster(Baseline[Clusters]):
    """Cross-entropy of a linear head (l, K) over the clusters of this epoch.

    ``assignment`` (N,) is the clustering last made and ``previous`` that of the epoch before, -1 where there is none.
    ``epoch`` is the seed of k-means. ``fresh`` is the head that the first of an epoch's ``steps`` starts from.
    """

    name = "deepcluster"
    summary = "k-means clusters of the features, renewed every epoch, as classes"
    reference = "Caron, Bojanowski, Joulin and Douze, ECCV 2018"
    needs = Needs(labels=False, unlabelled=True, graph=False, views=True)
    capturable_loss = True
    follows_examples = True
    Settings = DeepClusterSettings
    settings: DeepClusterSettings
    head: nn.Linear
    fresh: Tensor
    epoch: Tensor
    steps: Tensor
    assignment: Tensor
    previous: Tensor

    def prepare(self, inputs: Tensor, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """A head for at most as many clusters as examples, and the views that fit the inputs."""
        clusters = min(self.settings.clusters, len(inputs))
        self.head = linear_head(self.embedding_width(width), clusters, generator)
        self.register_buffer("fresh", self.head.weight.detach().clone(), persistent=False)
        for name in ("epoch", "steps"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        for name in ("assignment", "previous"):
            self.register_buffer(name, torch.full((len(inputs),), -1))
        self.make_views = preset_views(inputs, self.settings.augmentation, (self.settings.views,))

    def begin_epoch(self, epoch: int) -> None:
        """Draw a new head: the numbers of clusters mean nothing to the last one."""
        self.epoch.fill_(epoch)
        self.previous.copy_(self.assignment)
        self.fresh.normal_(std=HEAD_DEVIATION / self.settings.head_rate)
        self.steps.zero_()

    @torch.no_grad()
    def constraints(self, features: Tensor, labels: Tensor) -> Clusters:
        """The clusters of the features, from the seed of this epoch."""
        points = whitened(features, self.settings.pca)
        found = kmeans(points, len(self.head.bias), int(self.epoch), restarts=1, iterations=ITERATIONS)
        self.assignment.copy_(found.assignment)
        filled = torch.bincount(found.assignment, minlength=len(self.head.bias)) > 0
        return Clusters(torch.arange(len(points), device=points.device), found.assignment, filled)

    def loss(self, metric: Metric, features: Tensor, constraints: Clusters) -> Tensor:
        """Mean cross-entropy over the clusters that have examples.

        Adam moves every weight of the head by about lr in a step. With weights that are ``head_rate`` times smaller,
        and points as much larger, logits start as they would and change as many times faster.
        """
        if self.training:
            self._renew_head()
        logits = head_logits(self.head, self.settings.head_rate * unit_points(metric, features))
        return cross_entropy(logits.masked_fill(~constraints.filled, -math.inf), constraints.targets)

    @torch.no_grad()
    def _renew_head(self) -> None:
        """Replace the head in the first step of an epoch: before it, averages may stand in for the weights of steps."""
        first = self.steps == 0
        self.head.weight.copy_(torch.where(first, self.fresh, self.head.weight))
        self.head.bias.mul_(~first)
        self.steps += 1

    def statistics(self, metric: Metric, features: Tensor, constraints: Clusters) -> dict[str, float]:
        """Clusters with examples, the share of examples in the largest, and how alike the last epoch's were."""
        sizes = constraints.sizes
        found = {
            "clusters": float((sizes > 0).sum()),
            "largest_cluster": float(sizes.max()) / len(constraints),
        }
        if bool((self.previous < 0).any()):
            return found
        return found | {"nmi_with_last": mutual_information(constraints.targets, self.previous)}


def whitened(features: Tensor, components: int) -> Tensor:
    """Unit rows (N, p) of whitened principal components, p at most ``components``, the width d and N - 1."""
    most = min(components, features.shape[1], len(features) - 1)
    return unit_features(whitening(features, most).transform(features - features.mean(0)))


def mutual_information(first: Tensor, second: Tensor) -> float:
    """NMI of two clusterings (N,), 2 I / (H + H): 1 where they are the same but for names, 0 where independent."""
    pairs = first * (second.max() + 1) + second
    total, joint = entropy(first) + entropy(second), entropy(pairs)
    return min(max(2.0 * (total - joint) / total, 0.0), 1.0) if total > 0 else 1.0


def entropy(clusters: Tensor) -> float:
    """Of the cluster (N,) of a random example, in nats."""
    counts = torch.unique(clusters, return_counts=True)[1]
    return float(torch.special.entr(counts.double() / len(clusters)).sum())
