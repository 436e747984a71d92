"""What the page of a run answers: points, examples, search, the queue, lists, and labels."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.encoders.photographs import PhotoTransform
from semimetric.evaluation.audit import held_out_predictions, likely_errors, near_duplicates, outliers
from semimetric.graph import nearest_neighbors
from semimetric.model.fitted import GRAPH_NEIGHBORS, posteriors_of
from semimetric.model.folder import LoadedRun, load_run
from semimetric.serve.book import LabelBook, of_run, open_book
from semimetric.serve.maps import full_map
from semimetric.serve.pictures import Pictures, jpeg_of, open_pictures
from semimetric.serve.suggest import suggest

THUMB, PICTURE = 96, 384
"""Pixels of a small and of a large picture."""

LISTED = 200
"""Entries of a list at most."""

QUEUE_POSTERIORS = 20_000
"""Up to this many examples, labels are propagated again before the queue is made."""


class Desk:
    """A run with the labels that people give it.

    Parameters
    ----------
    run : folder of the run, which is not changed
    book : labels given so far; a new desk on a run that learned from them goes on with the same book
    data_dir : folder that holds benchmark data
    source : folder or table with the examples, for a run that was not made here
    learned : what ``book.identities`` said when the run began to learn from the book
    """

    def __init__(
        self,
        run: Path,
        book: LabelBook | None = None,
        data_dir: Path | None = None,
        source: Path | None = None,
        learned: Mapping[str, tuple[int, str]] | None = None,
    ) -> None:
        self.loaded: LoadedRun = load_run(run, "cpu")
        self.fitted = self.loaded.fitted
        self.result = self.loaded.fitted.facts
        self.run, self.data_dir, self.source = run, data_dir, source
        self.pictures: Pictures = open_pictures(self.loaded, data_dir, source)
        self.given = of_run(self.fitted)._replace(learned=learned)
        self.names, self.trained_classes = tuple(self.given.names), self.given.classes
        self.book = book or open_book(run, self.fitted, self.pictures)
        if book is not None:
            book.grow(self.given, self.pictures.digest)
        self.small = lru_cache(4096)(self._small)
        self._queueing = Lock()
        self._queued: tuple[tuple[int, int, int], list[dict[str, Any]]] = (0, 0, 0), []

    def classes(self) -> list[str]:
        """Classes of the run and those that people added."""
        return [found.name for found in self.book.classes()]

    def labels(self) -> Tensor:
        """Numbers (N,) of the current labels among ``classes``, -1 for none."""
        numbers = {name: number for number, name in enumerate(self.classes())}
        given = self.book.labels[: len(self.names)]  # a run that has learned again may have more examples
        return torch.tensor([-1 if label is None else numbers.get(label, -1) for label in given])

    def predicted(self) -> Tensor:
        """Places (N,) of the predicted classes among ``classes``; -1 for a class that was deleted, or none."""
        numbers = {name: number for number, name in enumerate(self.classes())}
        now = [numbers.get(name or "", -1) for name in self.book.names_of(self.given)]
        return torch.tensor(now)[self._best] if now else self._best - 1

    @cached_property
    def _best(self) -> Tensor:
        """Places (N,) of the predicted classes among those of the run; 0 if it knows none."""
        found = self.fitted.posteriors
        return found.shares.argmax(1) if len(found.classes) else torch.zeros(len(self.names), dtype=torch.int64)

    @cached_property
    def map(self) -> tuple[Tensor, str]:
        """Points (N, 2), and in words how they were placed."""
        made = full_map(self.fitted.embeddings, self._best)
        return made.points, made.made

    @cached_property
    def neighbors(self) -> Tensor:
        """Nearest other examples (N, k)."""
        return nearest_neighbors(self.fitted.embeddings, min(GRAPH_NEIGHBORS, len(self.names) - 1))

    def facts(self) -> dict[str, Any]:
        """The run in short, for the head of the page."""
        return {
            "name": self.run.resolve().name,
            "key": self.book.key,
            "examples": len(self.names),
            "labelled": self.book.labelled,
            "classes": self.listed_classes(),
            "kind": self.fitted.spec.kind,
            "pictures": self.pictures.has_images,
            "missing": " ".join([self.pictures.missing, *self.book.matches.note(self.book.path)]).strip(),
            "map": self.map[1],
            "method": self.result.get("method", ""),
            "trust": (self.result.get("trust") or {}).get("sentence", ""),
            "final": self.result.get("final"),
            "labels_file": str(self.book.path),
            "changes": self.book.changes,
            "last": self.book.last,
        }

    def listed_classes(self) -> list[dict[str, Any]]:
        """Name, key and colour of each class."""
        return [{"name": name, "key": key, "colour": colour} for _, key, colour, name, _ in self.book.classes()]

    def columns(self) -> bytes:
        """All examples as columns, one after another: x, y, confidence (float32), label, predicted (int32).

        A class is its colour, which it keeps.
        """
        points = self.map[0].numpy().astype("<f4")
        confidence = self.fitted.posteriors.confidence.numpy().astype("<f4")
        whole = [points[:, 0], points[:, 1], confidence]
        colours = torch.tensor([*(found.colour for found in self.book.classes()), -1])
        numbers = [colours[self.labels()].numpy(), colours[self.predicted()].numpy()]
        return b"".join([*(column.tobytes() for column in whole), *(n.astype("<i4").tobytes() for n in numbers)])

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Name, label, prediction and values of some examples."""
        named = [*self.book.names_of(self.given), None]
        best = self._best if len(named) > 1 else self._best - 1
        return [
            {
                "row": row,
                "name": self.names[row],
                "label": self.book.labels[row],
                "source": "" if self.book.labels[row] is None else self.book.sources[row],
                "predicted": named[int(best[row])],
                "confidence": round(float(self.fitted.posteriors.confidence[row]), 4),
                "values": [(name, f"{value:.4g}") for name, value in self.pictures.values(row)],
            }
            for row in self.checked(rows)
        ]

    def checked(self, rows: Any) -> list[int]:
        """Rows that are numbers of examples; others are refused."""
        if not isinstance(rows, list | tuple):
            raise InputError(f"rows must be a list of numbers of examples, got {type(rows).__name__}.")
        for row in rows:
            if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < len(self.names):
                raise InputError(f"rows must be numbers of examples, from 0 to {len(self.names) - 1}, got {row!r}.")
        return list(rows)

    def _small(self, row: int) -> bytes | None:
        self.book.see(row)
        tile = self.pictures.tile(row, THUMB)
        return None if tile is None else jpeg_of(tile)

    def large(self, row: int) -> bytes | None:
        """A large picture as JPEG; None if there is none."""
        tile = self.pictures.tile(row, PICTURE)
        return None if tile is None else jpeg_of(tile)

    def similar(self, row: int, k: int) -> list[dict[str, Any]]:
        """The examples nearest to one of them, which is the first."""
        (row,) = self.checked([row])
        return self._hits(self.fitted.embeddings[row : row + 1], k)

    def similar_to_picture(self, content: bytes, k: int) -> list[dict[str, Any]]:
        """The examples nearest to an uploaded picture, which is decoded as ``fit`` decodes."""
        if not self.pictures.has_images:
            raise InputError("the examples of this run are rows of a table, so that a picture cannot be searched for.")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "upload"
            path.write_bytes(content)
            return self._hits(self._embedded(path), k)

    def _embedded(self, path: Path) -> Tensor:
        model, shape = self.fitted.model, self.fitted.spec.shape
        transform = model.transform or PhotoTransform(shape[-1], "squash")
        _, inputs, skipped = transform.read([path], model.device)
        for reason in skipped.values():
            raise InputError(f"the picture cannot be decoded: {reason}.")
        if model.transform is None:
            inputs = inputs.double() / 255 * self.pictures.brightest
            inputs = (inputs.mean(1, keepdim=True) if shape[0] == 1 else inputs).float()
        return model.embed(inputs)

    def _hits(self, query: Tensor, k: int) -> list[dict[str, Any]]:
        hits = self.fitted.nearest(query, min(k, len(self.names)))
        found = self.examples(hits.rows[0].tolist())
        return [hit | {"distance": float(f"{d:.6g}")} for hit, d in zip(found, hits.distances[0].tolist(), strict=True)]

    def queue(self, count: int) -> list[dict[str, Any]]:
        """What to label next, the most helpful first; browsers that ask for the same wait for one answer."""
        with self._queueing:
            state = count, self.book.last, self.book.changes
            if self._queued[0] != state:
                self._queued = state, self._new_queue(count)
            return self._queued[1]

    def _new_queue(self, count: int) -> list[dict[str, Any]]:
        labels = self.labels()
        answered = labels >= 0
        answered[[row for row in self.book.skipped if row < len(labels)]] = True
        unlabelled = int((~answered).sum())
        if not unlabelled:
            return []
        found = self.fitted.posteriors
        if self.book.changes and len(labels) <= QUEUE_POSTERIORS:
            found = posteriors_of(self.fitted.embeddings, labels)
        count = min(count, unlabelled, LISTED)
        chosen = suggest(self.fitted.embeddings, answered.long() - 1, found.shares, found.confidence, count)
        listed = self.examples(chosen.rows.tolist())
        return [entry | {"why": f"stands for {int(near)}"} for entry, near in zip(listed, chosen.near, strict=True)]

    def errors(self) -> list[dict[str, Any]]:
        """Labels that the others contradict, the surest first."""
        labels, known = self.labels(), self.classes()
        try:
            held_out = held_out_predictions(lambda some: posteriors_of(self.fitted.embeddings, some), labels)
        except InputError:
            return []
        found = likely_errors(held_out, labels)
        listed = self.examples(found.rows[:LISTED].tolist())
        reasons = zip(listed, found.predicted.tolist(), found.probability.tolist(), strict=False)
        return [
            entry | {"why": f"{known[number]}? {100 * share:.0f}\N{NO-BREAK SPACE}%"}
            for entry, number, share in reasons
        ]

    def duplicates(self) -> list[dict[str, Any]]:
        """Pairs that are nearly the same, one after the other."""
        pairs = near_duplicates(self.fitted.embeddings, self.neighbors)
        rows = pairs.rows[: LISTED // 2]
        why = [f"pair {number}, distance {d:.3g}" for number, d in enumerate(pairs.distances.tolist()[: len(rows)], 1)]
        listed = self.examples(rows.flatten().tolist())
        return [entry | {"why": why[place // 2]} for place, entry in enumerate(listed)]

    def outliers(self) -> list[dict[str, Any]]:
        """Examples that are far from all others."""
        found = outliers(self.fitted.embeddings, LISTED // 2, self.neighbors)
        listed = self.examples(found.rows.tolist())
        return [entry | {"why": f"{score:.1f} times"} for entry, score in zip(listed, found.scores, strict=True)]


def compared(before: Desk, after: Desk) -> dict[str, Any]:
    """Test scores of two runs on the same examples, where there are any, and whose predicted class changed."""
    old, new = (
        [known[number] if number >= 0 else "" for number in desk.predicted().tolist()]
        for desk, known in ((before, before.classes()), (after, after.classes()))
    )
    pairs = zip(old, new, strict=False)  # the new run may have more examples
    changed = [row for row, (was, now) in enumerate(pairs) if was != now]
    return {
        "before": before.result.get("final"),
        "after": after.result.get("final"),
        "changed": len(changed),
        "rows": changed[:LISTED],
        "from": [old[row] for row in changed[:LISTED]],
        "run": str(after.run),
    }
