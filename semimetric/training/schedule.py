"""Schedule of the partitions of the unlabelled data over the epochs."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.data import partitions


class PartitionSchedule:
    """Random partitions in turn, ``epochs_each`` epochs on each, reshuffled after all have been used."""

    def __init__(self, unlabelled: Tensor, size: int, epochs_each: int, generator: torch.Generator) -> None:
        self._unlabelled = unlabelled.cpu()
        self._size = size
        self._epochs_each = epochs_each
        self._generator = generator
        self._waiting: list[Tensor] = []
        self._current = self._unlabelled[:0]

    def smallest(self) -> int:
        """Number of examples in the smallest partition."""
        pieces = -(-len(self._unlabelled) // self._size)
        return len(self._unlabelled) // pieces if pieces else 0

    def for_epoch(self, epoch: int) -> Tensor:
        """Rows of the unlabelled examples of ``epoch``, counted from 1. Must be called for each epoch in order."""
        if len(self._unlabelled) and self.is_first(epoch):
            if not self._waiting:
                self._waiting = partitions(self._unlabelled, self._size, self._generator)
            self._current = self._waiting.pop(0)
        return self._current

    def is_first(self, epoch: int) -> bool:
        """Whether ``epoch`` is the first on its partition."""
        return (epoch - 1) % self._epochs_each == 0

    def state(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint."""
        sizes = torch.tensor([len(piece) for piece in (self._current, *self._waiting)])
        return {"partition_rows": torch.cat([self._current, *self._waiting]), "partition_sizes": sizes}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from ``state``."""
        self._current, *self._waiting = state["partition_rows"].split(state["partition_sizes"].tolist())
