"""Which training examples are labelled, unlabelled or withheld, and the partitions of the unlabelled ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from semimetric.core.arrays import check_labels
from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError


@dataclass(frozen=True)
class Split:
    """Three disjoint sets of positions, each a sorted int64 vector, that together cover every example."""

    labelled: Tensor
    unlabelled: Tensor
    validation: Tensor


Withheld = Literal["examples", "classes"]


def split_examples(
    labels: Tensor, labels_per_class: int, validation_share: float, seed: int, withheld: Withheld = "examples"
) -> Split:
    """Draw a stratified split: validation and labelled examples from each class, the rest unlabelled.

    Parameters
    ----------
    labels : Tensor
        Class numbers (N,); -1 marks examples whose class is unknown: they are always unlabelled.
    labels_per_class : int
        How many labelled examples each class keeps; none is enough for methods that need no labels.
    validation_share : float
        Share in [0, 1) that is withheld to choose the best model.
    seed : int
        The split depends on it and on ``labels`` alone. With the same seed, a larger ``labels_per_class``
        only adds labelled examples.
    withheld : str
        What the validation share is of: ``examples`` of each class, or whole ``classes`` (two at the least), which
        tells how a model does on classes that it has never seen.
    """
    _check_settings(labels, labels_per_class, validation_share)
    check_choice(withheld, ("examples", "classes"), "withheld")
    labels = labels.cpu()
    classes = sorted(set(labels[labels >= 0].tolist()))
    if len(classes) < 2:
        raise InputError(
            f"labels must hold at least two classes to tell apart, but hold {len(classes)}; "
            "add examples of other classes."
        )
    generator = torch.Generator().manual_seed(seed)
    new, share = set(), validation_share
    if withheld == "classes":
        new, share = _draw_classes(classes, validation_share, generator), 0.0
    drawn = [_draw_class(labels, label, labels_per_class, share, generator) for label in classes if label not in new]
    new_ones = [(labels == label).nonzero().squeeze(1) for label in new]
    validation, labelled = torch.cat([held for held, _ in drawn] + new_ones), torch.cat([kept for _, kept in drawn])
    return _with_the_rest(len(labels), labelled, validation)


def _check_settings(labels: Tensor, labels_per_class: int, validation_share: float) -> None:
    check_labels(labels, len(labels))
    if labels_per_class < 0:
        raise InputError(
            f"labels_per_class must be at least 0, but is {labels_per_class}; 0 leaves all examples unlabelled."
        )
    if not 0 <= validation_share < 1:
        raise InputError(
            f"validation_share must be at least 0 and below 1, but is {validation_share}; 0.1 withholds a tenth."
        )


def _draw_classes(classes: list[int], share: float, generator: torch.Generator) -> set[int]:
    """The classes that are withheld as a whole."""
    count = max(2, round(share * len(classes))) if share else 0
    if len(classes) - count < 2:
        raise InputError(
            f"validation_share {share:g} withholds {count} of {len(classes)} classes, and training needs at least 2; "
            "lower validation_share, or withhold examples instead of classes."
        )
    return {classes[i] for i in torch.randperm(len(classes), generator=generator)[:count].tolist()}


def _draw_class(
    labels: Tensor, label: int, labels_per_class: int, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the withheld and the labelled positions of one class."""
    members = (labels == label).nonzero().squeeze(1)
    members = members[torch.randperm(len(members), generator=generator)]
    withheld = round(share * len(members))
    if len(members) - withheld < labels_per_class:
        raise InputError(
            f"Class {label} has too few examples, {len(members)}: {labels_per_class} labelled and {withheld} "
            "withheld ones were asked of it; lower labels_per_class or validation_share, or add examples."
        )
    return members[:withheld], members[withheld : withheld + labels_per_class]


def _with_the_rest(count: int, labelled: Tensor, validation: Tensor) -> Split:
    rest = torch.ones(count, dtype=torch.bool)
    rest[labelled] = False
    rest[validation] = False
    unlabelled = rest.nonzero().squeeze(1)
    if len(unlabelled) == 0:
        raise InputError(
            f"No unlabelled examples are left: of {count}, {len(labelled)} are labelled and {len(validation)} "
            "are withheld for validation; lower labels_per_class or add unlabelled examples."
        )
    return Split(labelled.sort().values, unlabelled, validation.sort().values)


def partitions(unlabelled: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
    """Cut a random permutation of ``unlabelled`` (n,) into ceil(n / size) pieces; lengths differ by at most one."""
    if size < 1:
        raise InputError(f"size must be at least 1, but is {size}; it is the number of examples in a partition.")
    if len(unlabelled) == 0:
        return []
    order = torch.randperm(len(unlabelled), generator=generator, device=generator.device)
    pieces = -(-len(unlabelled) // size)
    return list(unlabelled[order.to(unlabelled.device)].tensor_split(pieces))
