"""What the supervised baselines share: batches of a few examples of each of some classes, and how a batch is judged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.data import VIEW_HELP, VIEW_KINDS, ViewKind, preset_views
from semimetric.methods.base import Needs
from semimetric.methods.baseline import Baseline, BaselineSettings, Targets
from semimetric.metric import Metric
from semimetric.mining import labelled_masks

PROBE_SIZE = 500
"""Examples of the batch on which the numbers for the log are measured."""


@dataclass(frozen=True)
class Labelled(Targets):
    """Labelled examples (n,) with their classes (n,), all of a working set or those of a batch.

    ``per_class`` () is how many examples of a class a batch shall hold; ``draws`` (n, n) are uniform numbers in [0, 1)
    for what a loss leaves to chance. They are tensors because a batch consists of tensors alone.
    """

    draws: Tensor
    per_class: Tensor

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Labelled]:
        """Batches of ``size`` different examples, as many as would be full if none were met twice.

        See ``Dealer`` for what is in a batch.
        """
        dealer = Dealer(self.targets.tolist(), int(self.per_class), generator)
        for _ in range(len(self) // size):
            rows = torch.tensor(dealer.deal(size), device=self.nodes.device)
            draws = torch.rand(size, size, generator=generator).to(self.nodes.device)
            yield Labelled(self.nodes[rows], self.targets[rows], draws, self.per_class)


class Deck:
    """Cards dealt in random order, none again before all others have been dealt."""

    def __init__(self, cards: list[int], generator: torch.Generator) -> None:
        self.cards = cards
        self._generator = generator
        self._left: list[int] = []

    def draw(self, barred: Collection[int]) -> int:
        """The next card that is not barred; at least one must not be."""
        place = next((i for i, card in enumerate(self._left) if card not in barred), None)
        if place is None:
            self._shuffle_in()
            return self.draw(barred)
        return self._left.pop(place)

    def _shuffle_in(self) -> None:
        """Put the cards that have been dealt below those that are left."""
        left = set(self._left)
        order = torch.randperm(len(self.cards), generator=self._generator).tolist()
        self._left += [self.cards[i] for i in order if self.cards[i] not in left]


class Dealer:
    """Deals batches of ``per_class`` examples of each of as many classes as it takes to fill them.

    Where there are too few classes to fill a batch each gives more, and where ``per_class`` is more than half of the
    batch, half of it: two examples or more of it are of different classes. The first class has two examples, if any
    class has: three examples or more hold a triplet. A class gives what it has, and where all of them together gave
    too little they are asked again. The last class fills the batch up.

    Classes take turns in random order, and so do the examples of a class: all are met before one is met again. Rare
    classes are met as often as frequent ones, and their examples more often.
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
        """Different rows of ``targets`` for a batch of ``size``, which is at most their number."""
        share = min(max(self._per_class, _rounded_up(size, len(self._examples))), _rounded_up(size, 2))
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


def _rounded_up(number: int, parts: int) -> int:
    return -(-number // parts)


@dataclass(frozen=True)
class SupervisedSettings(BaselineSettings):
    """Hyper-parameters of every supervised baseline."""

    per_class: int = setting(5, "Examples of a class in a batch; more where there are too few classes to fill it.")
    augmentation: ViewKind = setting("auto", VIEW_HELP)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_class < 2:
            raise InputError(
                f"per_class must be at least 2, since a triplet has two examples of a class, got {self.per_class}."
            )
        check_choice(self.augmentation, VIEW_KINDS, "augmentation")


class Supervised(Baseline[Labelled]):
    """A loss of the triplets of labelled examples, over weak views of them.

    Batches without a triplet teach nothing; they are counted in ``tally`` (2,): batches of an epoch, and how many of
    them had none.
    """

    needs = Needs(labels=True, unlabelled=False, graph=False, views=True)
    capturable_loss = True
    Settings = SupervisedSettings
    settings: SupervisedSettings
    tally: Tensor

    def __init__(self, settings: SupervisedSettings | None = None) -> None:
        super().__init__(settings)
        self.register_buffer("tally", torch.zeros(2, dtype=torch.int64))

    def check_labels(self, labels: Tensor) -> None:
        """Some class needs a second example."""
        super().check_labels(labels)
        known, counts = torch.unique(labels[labels >= 0], return_counts=True)
        if int(counts.max()) < 2:
            raise InputError(
                f"method {self.name!r} learns from two labelled examples of one class, and each of the {len(known)} "
                "classes has one. Label a second example of some class, or use a method that can learn from one label "
                "per class, such as 'consensus'."
            )

    def prepare(self, inputs: Tensor, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """The views that fit the inputs."""
        self.make_views = preset_views(inputs, self.settings.augmentation, ("weak",))

    def begin_epoch(self, epoch: int) -> None:
        """Count the batches of an epoch from nothing."""
        self.tally.zero_()

    def constraints(self, features: Tensor, labels: Tensor) -> Labelled:
        """The labelled examples; the draws of all of them together are 1/2."""
        nodes = (labels >= 0).nonzero().flatten()
        draws = torch.tensor(0.5, device=labels.device).expand(len(nodes), len(nodes))
        return Labelled(nodes, labels[nodes], draws, torch.tensor(self.settings.per_class, device=labels.device))

    def loss(self, metric: Metric, features: Tensor, constraints: Labelled) -> Tensor:
        """The loss of the batch, which is counted."""
        if self.training:
            positive, negative = labelled_masks(constraints.targets)
            skipped = ~(positive & negative.any(1, keepdim=True)).any()
            self.tally += torch.stack([torch.ones_like(skipped), skipped])
        return self.batch_loss(metric.transform(features), constraints)

    def in_use(self) -> dict[str, float]:
        """The share of the epoch's batches that held no triplet."""
        batches, skipped = self.tally.tolist()
        if skipped:
            self.bind_guard(
                "no_triplet",
                f"{self.name}: {skipped} of {batches} batches of an epoch held no two examples of one class beside one "
                "of another, so that nothing was learned from them. A batch needs at least 3 examples; a larger "
                "batch_size helps.",
            )
        return {"skipped_batches": skipped / max(batches, 1)}

    def statistics(self, metric: Metric, features: Tensor, constraints: Labelled) -> dict[str, float]:
        """Loss and share of violated pairs of a batch that is the same in every epoch."""
        size = min(PROBE_SIZE, len(constraints))
        probe = next(constraints.minibatches(size, torch.Generator().manual_seed(0)))
        points = metric.transform(features[probe.nodes])
        return {"loss": float(self.batch_loss(points, probe)), "active_share": self.violated_share(points, probe)}

    @abstractmethod
    def batch_loss(self, points: Tensor, batch: Labelled) -> Tensor:
        """What the encoder minimises on the embedding (n, l) of a batch."""

    @abstractmethod
    def violated_share(self, points: Tensor, batch: Labelled) -> float:
        """The share of the pairs of one class in a batch that some negative comes too near to."""
