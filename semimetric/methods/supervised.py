"""Base of the supervised baselines: class-balanced batches of labelled examples."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.data import preset_views
from semimetric.data.stored import Inputs
from semimetric.methods.base import Needs
from semimetric.methods.baseline import ON_VIEWS, Baseline, Targets, ViewSettings
from semimetric.methods.defaults import extended
from semimetric.metric import Metric
from semimetric.mining import labelled_masks

PROBE_SIZE = 500  # of the batch that ``statistics`` uses


@dataclass(frozen=True)
class Labelled(Targets):
    """Labelled examples (n,) with their classes (n,), of a working set or of a batch."""

    draws: Tensor  # (n, n) uniform random numbers in [0, 1) for the loss
    per_class: Tensor  # () examples of a class in a batch; a tensor, as a batch may hold only tensors

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Labelled]:
        """``n // size`` batches of ``size`` different examples each, drawn by ``Dealer``."""
        dealer = Dealer(self.targets.tolist(), int(self.per_class), generator)
        for _ in range(len(self) // size):
            rows = torch.tensor(dealer.deal(size), device=self.nodes.device)
            draws = torch.rand(size, size, generator=generator).to(self.nodes.device)
            yield Labelled(self.nodes[rows], self.targets[rows], draws, self.per_class)


class Deck:
    """Deals cards in random order; each card is dealt again only after all others."""

    def __init__(self, cards: list[int], generator: torch.Generator) -> None:
        self.cards = cards
        self._generator = generator
        self._left: list[int] = []

    def draw(self, barred: Collection[int]) -> int:
        """The next card that is not in ``barred``; there must be one."""
        while (place := next((i for i, card in enumerate(self._left) if card not in barred), None)) is None:
            left = set(self._left)  # the cards already dealt are shuffled, and put below these
            order = torch.randperm(len(self.cards), generator=self._generator).tolist()
            self._left += [self.cards[i] for i in order if self.cards[i] not in left]
        return self._left.pop(place)


class Dealer:
    """Deals batches with ``per_class`` examples of each of as many classes as needed.

    With too few classes to fill a batch, each class gives more, but at most half of the batch, so that there are two
    classes. The first class has two examples if any class does, so that a batch of three holds a triplet. Small classes
    give all they have; if a batch is still not full, all classes are asked again. Classes take turns in random order,
    and so do the examples of a class: those of rare classes appear more often.
    """

    def __init__(self, targets: list[int], per_class: int, generator: torch.Generator) -> None:
        groups: dict[int, list[int]] = {}
        for row, target in enumerate(targets):
            groups.setdefault(target, []).append(row)
        self._examples = {target: Deck(rows, generator) for target, rows in groups.items()}
        self._classes = Deck(list(groups), generator)
        self._per_class = per_class
        single = {target for target, rows in groups.items() if len(rows) == 1}
        self._never_first = single if len(single) < len(groups) else set()

    def deal(self, size: int) -> list[int]:
        """``size`` different rows of ``targets``; ``size`` is at most their number."""
        share = min(max(self._per_class, math.ceil(size / len(self._examples))), math.ceil(size / 2))
        held: dict[int, set[int]] = {target: set() for target in self._examples}
        dealt: list[int] = []
        asked: set[int] = set()
        while len(dealt) < size:
            target = self._classes.draw(asked if dealt else self._never_first)
            available = len(self._examples[target].cards) - len(held[target])
            for _ in range(min(share, available, size - len(dealt))):
                dealt.append(self._examples[target].draw(held[target]))
                held[target].add(dealt[-1])
            asked.add(target)
            if len(asked) == len(held):
                asked = {target for target, rows in held.items() if len(rows) == len(self._examples[target].cards)}
        return dealt


@dataclass(frozen=True)
class SupervisedSettings(ViewSettings):
    """Hyper-parameters of every supervised baseline."""

    per_class: int = setting(5, "Examples of each class in a batch; more if there are too few classes to fill it.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_class < 2:
            raise InputError(
                f"per_class must be at least 2, since a triplet has two examples of a class, got {self.per_class}."
            )


class Supervised(Baseline[Labelled]):
    """A triplet loss on weak views of the labelled examples."""

    needs = Needs(labels=True, unlabelled=False, graph=False, views=True)
    capturable_loss = True
    training_defaults = Baseline.training_defaults | {"batch_size": 100, "passes": 50}
    defaults_on = extended(ON_VIEWS, {"cifar10": {"lr": 3e-4, "epochs": 20}})
    Settings = SupervisedSettings
    settings: SupervisedSettings
    tally: Tensor  # (2,) batches of an epoch, and those without a triplet

    def __init__(self, settings: SupervisedSettings | None = None) -> None:
        super().__init__(settings)
        self.register_buffer("tally", torch.zeros(2, dtype=torch.int64))

    def check_labels(self, labels: Tensor) -> None:
        """At least one class needs two labelled examples."""
        super().check_labels(labels)
        known, counts = torch.unique(labels[labels >= 0], return_counts=True)
        if int(counts.max()) < 2:
            raise InputError(
                f"method {self.name!r} needs a class with two labelled examples, and each of the {len(known)} classes "
                "has one. Label a second example of some class, or use a method that can learn from one label per "
                "class, such as 'consensus'."
            )

    def on_fit_begin(self, inputs: Inputs, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Build the views."""
        self.make_views = preset_views(inputs, self.settings.augmentation, ("weak",))

    def on_epoch_begin(self, epoch: int) -> None:
        """Reset the counts."""
        self.tally.zero_()

    def constraints(self, features: Tensor, labels: Tensor) -> Labelled:
        """The labelled examples; their ``draws`` are constant, batches draw their own."""
        nodes = (labels >= 0).nonzero().flatten()
        draws = torch.tensor(0.5, device=labels.device).expand(len(nodes), len(nodes))
        return Labelled(nodes, labels[nodes], draws, torch.tensor(self.settings.per_class, device=labels.device))

    def loss(self, metric: Metric, features: Tensor, constraints: Labelled) -> Tensor:
        """The loss of a batch; in training it is counted."""
        if self.training:
            positive, negative = labelled_masks(constraints.targets)
            skipped = ~(positive & negative.any(1, keepdim=True)).any()
            self.tally += torch.stack([torch.ones_like(skipped), skipped])
        return self.batch_loss(metric.transform(features), constraints)

    def on_epoch_end(self) -> dict[str, float]:
        """Share of the epoch's batches without a triplet."""
        batches, skipped = self.tally.tolist()
        if skipped:
            self.bind_guard(
                "no_triplet",
                f"{self.name}: {skipped} of {batches} batches of an epoch contained no triplet (two examples of one "
                "class and one of another) and were not used. A batch needs at least 3 examples; increase batch_size.",
            )
        return {"skipped_batches": skipped / max(batches, 1)}

    def statistics(self, metric: Metric, features: Tensor, constraints: Labelled) -> dict[str, float]:
        """Loss and share of violated pairs, on a batch that is drawn with the same seed in every epoch."""
        size = min(PROBE_SIZE, len(constraints))
        probe = next(constraints.minibatches(size, torch.Generator().manual_seed(0)))
        points = metric.transform(features[probe.nodes])
        return {"loss": float(self.batch_loss(points, probe)), "active_share": self.violated_share(points, probe)}

    @abstractmethod
    def batch_loss(self, points: Tensor, batch: Labelled) -> Tensor:
        """The loss of the embedding (n, l) of a batch."""

    @abstractmethod
    def violated_share(self, points: Tensor, batch: Labelled) -> float:
        """Share of the same-class pairs of a batch for which some negative is too close."""
