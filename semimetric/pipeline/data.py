"""Examples as a fit takes them: of a benchmark, of a collection on disk, or of arrays in memory."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core.errors import DataError
from semimetric.data import (
    Collection,
    Dataset,
    Examples,
    Split,
    find_photographs,
    load_dataset,
    photograph_side,
    split_examples,
)
from semimetric.data.samples import Kind, Samples, photographs, vectors
from semimetric.data.schema import Schema
from semimetric.data.stored import Inputs
from semimetric.encoders.photographs import PhotoTransform
from semimetric.model.spec import ExampleNames
from semimetric.pipeline.descriptors import described, described_photographs
from semimetric.pipeline.plan import Plan
from semimetric.training.progress import Progress, Silent

SKIPPED_NAMED = 5
"""Files without an example that the outcome of a benchmark names."""


@dataclass
class FitData:
    """What a fit learns from, before preprocessing.

    Parameters
    ----------
    kind, shape : what one raw example is; photographs have the shape ()
    inputs : (N, ...) vectors, images, or features of a backbone; photographs beyond the memory are in a file
    labels : (N,) class numbers, -1 where unlabelled
    names : names of examples and classes
    transform : how photographs become inputs
    withheld, test : examples of a benchmark that only score; ``classes`` (N,) are its true ones, for the log
    facts : what the outcome of the fit says of the data
    schema : how the columns of a table became inputs
    """

    kind: Kind
    shape: tuple[int, ...]
    inputs: Inputs
    labels: Tensor
    names: ExampleNames = field(default_factory=ExampleNames)
    transform: PhotoTransform | None = None
    withheld: Examples | None = None
    test: Examples | None = None
    classes: Tensor | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    schema: Schema | None = None

    def release(self) -> None:
        """Forget the raw inputs, which may be gigabytes, once they have been scaled."""
        self.inputs, self.withheld, self.test = torch.empty(0), None, None


def benchmark_data(plan: Plan, dataset: Dataset) -> FitData:
    """A benchmark under the split of a plan; examples keep the order of the dataset."""
    split = split_of(plan, dataset.train.labels)
    rows = torch.cat([split.labelled, split.unlabelled]).sort().values
    classes = dataset.train.labels[rows]
    names = tuple(dataset.train_names[row] if dataset.train_names else f"train {row}" for row in rows.tolist())
    inputs = dataset.train.inputs[rows]
    side = photograph_side(plan.dataset, plan.network.side)
    shape = () if side else tuple(inputs.shape[1:])
    return FitData(
        "photographs" if side else "images" if inputs.ndim == 4 else "vectors",
        shape,
        inputs,
        torch.where(torch.isin(rows, split.labelled), classes, -1),
        ExampleNames(names, plan.dataset, dataset.class_names),
        withheld=dataset.train.subset(split.validation) if len(split.validation) else None,
        test=dataset.test,
        classes=classes,
        facts={
            "skipped": len(dataset.skipped),
            "skipped_files": dict(islice(dataset.skipped.items(), SKIPPED_NAMED)),
        },
    )


def split_of(plan: Plan, labels: Tensor) -> Split:
    """Which training examples of a benchmark are labelled, unlabelled and held out."""
    assert plan.split is not None
    wanted = plan.split
    return split_examples(labels, wanted.labels_per_class, wanted.validation_share, plan.seed, wanted.withheld)


def load_examples(plan: Plan, data_dir: Path | None, device: torch.device, progress: Progress | None = None) -> Dataset:
    """The dataset of a plan, with the features of its backbone in place of images, where it has one."""
    network, progress = plan.network, progress or Silent()
    network.weights_file()  # refuses missing ones before any work
    found = find_photographs(plan.dataset, data_dir) if network.backbone else None
    if found is not None:
        progress.stage(f"listing {len(found.album):,} photographs")
        split_of(plan, torch.tensor(found.parts()["training"].labels))  # refuses too few before any work
        return described_photographs(found, network, plan.seed, device, _counting(progress, "photographs described"))
    count = _counting(progress, "photographs decoded")
    dataset = load_dataset(plan.dataset, data_dir, network.side or None, network.fit, progress=count)
    if not network.backbone:
        return dataset
    progress.stage(f"features of {len(dataset.train) + len(dataset.test):,} images by {network.backbone}")
    return described(dataset, network, plan.seed, device)


def _counting(progress: Progress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress.stage(what, done, total)


def samples_of(collection: Collection) -> Samples:
    """The examples of a collection."""
    return photographs(collection.paths) if collection.paths is not None else vectors(collection.features)


def read_inputs(
    collection: Collection, transform: PhotoTransform | None, device: torch.device
) -> tuple[Collection, Tensor]:
    """Inputs (n, ...) of a collection in memory, and the collection without what cannot be decoded."""
    kept, inputs = read_all_inputs(collection, transform, device, in_memory=True)
    assert isinstance(inputs, Tensor)
    return kept, inputs


def read_all_inputs(
    collection: Collection,
    transform: PhotoTransform | None,
    device: torch.device,
    progress: Progress | None = None,
    in_memory: bool = False,
) -> tuple[Collection, Inputs]:
    """As ``read_inputs``; photographs beyond the memory are in a file, unless ``in_memory``."""
    samples = samples_of(collection)
    if samples.kind == "vectors":
        return collection, samples.tensor if transform is None else transform.inputs(samples.tensor, device)
    assert transform is not None
    count = None if progress is None else _counting(progress, "reading photographs")
    rows, inputs, skipped = transform.read_all(samples.paths, device, count, in_memory=in_memory)
    names = dict(zip(samples.paths, collection.names, strict=True))
    return subset(collection, rows.tolist(), {names[path]: reason for path, reason in skipped.items()}), inputs


def read_samples(
    samples: Samples, transform: PhotoTransform | None, device: torch.device, progress: Progress | None = None
) -> Inputs:
    """Model inputs (N, ...); a photograph that cannot be decoded is an error, since every row must stay."""
    if samples.kind != "photographs":
        return samples.tensor if transform is None else transform.inputs(samples.tensor, device)
    assert transform is not None
    tell = None if progress is None else _counting(progress, "reading photographs")
    _, values, skipped = transform.read_all(samples.paths, device, tell)
    if skipped:
        path, reason = next(iter(skipped.items()))
        raise DataError(
            f"{len(skipped)} of {len(samples)} photographs cannot be decoded, the first of them {path}: {reason}. "
            "Leave them out of X."
        )
    return values


def subset(collection: Collection, rows: list[int], skipped: dict[str, str]) -> Collection:
    """Some rows of a collection; ``skipped`` says why others are left out."""
    paths, features = collection.paths, collection.features
    return dataclasses.replace(
        collection,
        names=tuple(collection.names[row] for row in rows),
        labels=tuple(collection.labels[row] for row in rows),
        paths=None if paths is None else tuple(paths[row] for row in rows),
        features=None if features is None else features[rows],
        digests=tuple(collection.digests[row] for row in rows) if collection.digests else (),
        skipped=collection.skipped | skipped,
    )


def digest_of(collection: Collection) -> str:
    """SHA-256 of names, labels and features; of photographs their sizes and times of change."""
    digest = hashlib.sha256(repr((collection.names, collection.labels)).encode())
    if collection.suggested_rows:
        digest.update(repr(collection.suggested_rows).encode())
    if collection.features is not None:
        digest.update(collection.features.contiguous().numpy().tobytes())
    for path in collection.paths or ():
        digest.update(state_of(path).encode())
    return digest.hexdigest()


def state_of(path: Path) -> str:
    """Return size and time of change of a file; nothing if it is gone."""
    with suppress(OSError):
        status = path.stat()
        return f"{status.st_size} {status.st_mtime_ns};"
    return ""
