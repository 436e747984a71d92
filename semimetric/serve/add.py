"""More examples for a run, without training: embedded, predicted, and put beside those that it was trained on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.core.files import clear_leftovers
from semimetric.core.locks import locked
from semimetric.data import Collection
from semimetric.model.added import write_added
from semimetric.model.fitted import FittedModel
from semimetric.model.folder import LoadedRun, load_run
from semimetric.model.unknown import RISK
from semimetric.search import ExactIndex, build_index, check_place, search_run_index
from semimetric.serve.embed import check_any, embed_chunks, new_examples, together
from semimetric.training import Progress, Run

SAME = 1e-5
"""Distance below which two examples are copies, as a share of the length of an embedding; rounding is less."""


@dataclass(frozen=True)
class Added:
    """Names of the examples that were added, of copies that were not, and reasons for those that cannot be read.

    ``unlike`` are those without a label that look like no known class. ``examples`` is how many the run has now.
    ``new_classes`` are those that the run had no label of: it has not learned them, and no longer tells unknown ones.
    """

    names: tuple[str, ...]
    copies: tuple[str, ...]
    skipped: dict[str, str]
    examples: int
    unlike: tuple[str, ...] = ()
    new_classes: tuple[str, ...] = ()


def add_examples(
    run: Path | str,
    source: Path | str,
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    index: str | None = None,
    collection: str = "semimetric",
    device: str = "auto",
) -> Added:
    """Add the examples of a folder or table to a run, without training. All are added, or none.

    They are searched, suggested and used in predictions like those of the training. A copy of an example that the run
    has is left out.

    Parameters
    ----------
    run : folder of a run
    source : folder of photographs, whose sub-folders name classes as for ``fit``, or a table
    label_column, id_column : columns of labels and of names in a table
    index : place of an index of the run, which is built again with all examples
    collection : name of the collection in Milvus
    device : "auto", "cpu" or "cuda"

    Returns
    -------
    Added
        What was added, what was not, and the number of examples that the run has now.
    """
    loaded = load_run(Path(run), device)
    examples = new_examples(loaded, Path(source), label_column, id_column)
    return add_to(loaded, examples, Path(source), index, collection)


def add_to(
    loaded: LoadedRun,
    collection: Collection,
    source: Path,
    index: str | None = None,
    index_collection: str = "semimetric",
    progress: Progress | None = None,
) -> Added:
    """As ``add_examples``, of examples that are listed already."""
    fitted = loaded.fitted
    with locked(loaded.path):
        clear_leftovers(loaded.path)  # of a command that was killed after it had added
    if index is not None:
        check_place(index, "--index", existing=True)
        search_run_index(index, fitted.embeddings, fitted.embeddings[:1], 1, index_collection)  # refuses another run's
    found = together(list(embed_chunks(loaded, collection, progress)), collection.skipped)
    check_any(found)
    copied = copies_among(fitted.embeddings, found.embeddings)
    kept = (~copied).nonzero().flatten().tolist()
    if not kept:
        raise InputError(f"all {len(copied)} examples of {source} are copies of examples that {loaded.path} has.")
    label_of = dict(zip(collection.names, collection.labels, strict=True))
    names = [found.names[row] for row in kept]
    labels, inputs = [label_of[name] for name in names], None if found.inputs is None else found.inputs[kept]
    digests = dict(zip(collection.names, collection.digests, strict=True)) if collection.digests else {}
    free, known = _free_names(fitted, names, source), [digests[name] for name in names] if digests else ()
    grown = fitted.grown(free, found.embeddings[kept], labels, inputs, known)
    write_added(Run.open(loaded.path), fitted, grown)
    if index is not None:
        build_index(index, grown.embeddings, grown.examples.names, collection=index_collection, replace=True)
    copies = tuple(found.names[row] for row in copied.nonzero().flatten().tolist())
    added = grown.examples.names[len(fitted.labels) :]
    unlike = _unlike_all(fitted, inputs, labels)
    new = grown.examples.classes[len(fitted.examples.classes) :]
    return Added(added, copies, found.skipped, len(grown.labels), tuple(added[row] for row in unlike), tuple(new))


def _unlike_all(fitted: FittedModel, inputs: Tensor | None, labels: Sequence[str | None]) -> list[int]:
    """Rows of new examples without a label that look like no known class, as far as the run can tell."""
    if fitted.unknown is None or inputs is None:
        return []
    beyond = fitted.unknown.scores(inputs) > fitted.unknown.threshold(RISK)
    return [row for row in beyond.nonzero().flatten().tolist() if labels[row] is None]


def copies_among(known: Tensor, new: Tensor) -> Tensor:
    """Which of the embeddings ``new`` (n, l) are those of one in ``known`` (N, l), or of an earlier one in ``new``."""
    hits = ExactIndex(torch.cat([known, new])).search(new, 2)
    own = len(known) + torch.arange(len(new))[:, None]
    near = hits.distances <= SAME * new.norm(dim=1, keepdim=True).clamp_min(SAME)
    copied: Tensor = (near & (hits.rows < own)).any(1)
    return copied


def _free_names(fitted: FittedModel, names: Sequence[str], source: Path) -> list[str]:
    """Names for the new examples that say where they are, and that no example of the run has.

    Photographs outside of the run's own folder are named by their whole path, as by ``fit`` with a list of labels.
    """
    if fitted.spec.kind == "photographs":
        home = fitted.examples.source or os.path.abspath(source)
        paths = [Path(os.path.abspath(source)) / name for name in names]
        named = [p.relative_to(home).as_posix() if p.is_relative_to(home) else p.as_posix() for p in paths]
    else:
        taken = {*fitted.examples.names} & {*names}
        named = [f"{source.name}: {name}" if taken else name for name in names]
    twice = sorted({*fitted.examples.names} & {*named})
    if twice:
        raise InputError(
            f"the run has an example named {twice[0]!r} with another content. Rename the file or its folder, and add "
            "it again; or fit again, if it has changed."
        )
    return named
