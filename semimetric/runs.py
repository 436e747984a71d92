"""Estimators and run folders: a collection becomes a run, a run becomes the fitted estimator again."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import semimetric
from semimetric.data import Collection, labels_as_numbers
from semimetric.errors import InputError, RunError
from semimetric.estimator import MetricEstimator, SemiMetric, seed_of
from semimetric.linear_estimators import APIT, APLLR, ISDML, LRML, SERAPH
from semimetric.own import Samples, choose, learn, photographs, vectors
from semimetric.own.folder import Examples, read_learned, version_differences, versions, write_learned
from semimetric.training import Progress, Run, Silent, choose_device

ESTIMATORS: dict[str, type[MetricEstimator]] = {
    kind.__name__: kind for kind in (SemiMetric, LRML, SERAPH, ISDML, APLLR, APIT)
}


class VersionWarning(UserWarning):
    """A run was written by other versions than those that read it."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A run as it was found: the fitted estimator, what its examples are called, and how its versions differ."""

    estimator: MetricEstimator
    examples: Examples
    differences: str


def save(estimator: MetricEstimator, path: Path | str, names: Any = None) -> None:
    """Write a fitted estimator to a new run folder, from which ``load`` has it back.

    ``names`` (N,) are those of its examples, their numbers unless given.
    """
    learned = estimator.learned_
    names = tuple(str(name) for name in (range(len(learned.labels)) if names is None else names))
    if len(names) != len(learned.labels):
        raise InputError(f"names must be of the {len(learned.labels)} examples of fit, got {len(names)}.")
    run = Run.create(Path(path), _config(estimator, {"examples": len(names)}))
    write_learned(run, learned, Examples(names, "", tuple(estimator.classes_)))
    run.write("result.json", dict(learned.facts))


def load(path: Path | str, encoder: nn.Module | None = None, device: str = "auto") -> MetricEstimator:
    """The fitted estimator of a run folder. Nothing in it is executed or unpickled.

    ``encoder`` is needed for a run that was trained with a module of your own: build it as it was, and it is given the
    run's weights. A run of other versions is loaded with a ``VersionWarning`` that says what differs.
    """
    found = open_run(Path(path), encoder, device)
    if found.differences:
        warnings.warn(f"{path}: {found.differences}", VersionWarning, stacklevel=2)
    return found.estimator


def open_run(path: Path, encoder: nn.Module | None = None, device: str = "auto") -> Loaded:
    """What ``load`` returns, with the names of the examples."""
    run = Run.open(path)
    config = run.config()
    name, params = config.get("estimator", "SemiMetric"), config.get("params", {"method": config.get("method")})
    if name not in ESTIMATORS:
        raise RunError(
            f"{path} is of an estimator {name!r} that this version ({semimetric.__version__}) does not know."
        )
    learned, examples = read_learned(run, choose_device(device), encoder)
    if encoder is not None:
        params = params | {"encoder": encoder}
    try:
        estimator = ESTIMATORS[name](**params)
    except TypeError as error:
        raise RunError(
            f"{path} has settings that this version ({semimetric.__version__}) does not know: {error}."
        ) from error
    estimator.n_features_in_ = prod(learned.built.shape)
    estimator.adopt(learned, np.asarray(examples.classes))
    return Loaded(estimator, examples, version_differences(config.get("versions")))


def _config(estimator: MetricEstimator, data: dict[str, Any]) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    return {
        "version": semimetric.__version__,
        "versions": versions(),
        "estimator": type(estimator).__name__,
        "params": {name: _as_json(value) for name, value in params.items()},
        "data": data,
    }


def _as_json(value: Any) -> Any:
    """A parameter as JSON holds it; a module, and a generator of random numbers, are not held."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool | dict | list):
        return value
    return "auto" if isinstance(value, nn.Module) else None


def fit_collection(
    estimator: SemiMetric,
    collection: Collection,
    source: Path,
    out: Path,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Learn from a collection, writing to the run folder ``out``; with ``resume`` continue what is there.

    Photographs that cannot be decoded are left out, and named in the outcome.
    """
    progress = progress or Silent()
    device = choose_device(estimator.device)
    seed = seed_of(estimator.random_state)
    samples = samples_of(collection)
    choice = choose(samples.kind, samples.shape(), estimator.method, estimator.wishes(), device)
    if choice.why:
        progress.warn(choice.why)
    sight = choice.sight(seed)
    kept, inputs = read_kept(collection, samples, sight, device, progress)
    if len(kept) < 2:
        raise InputError(f"of {len(collection)} examples {len(kept)} can be read, and there is nothing to compare.")
    labels, classes = labels_as_numbers(kept.labels)
    task = estimator.task(samples, inputs, labels, choice, sight, seed)
    config = _config(estimator, {"source": source.name, "digest": _digest(kept), "examples": len(kept)})

    def start() -> Run:
        return (Run.resume if resume else Run.create)(out, config)

    learned = learn(task, device, start, progress)
    run = Run.open(out)
    examples = Examples(kept.names, str(source.resolve()), classes, kept.columns)
    outcome = learned.facts | {"found": kept.as_dict(), "method": estimator.method, "run": str(out)}
    outcome |= {"components": learned.embeddings.shape[1], "device": device.type, "seed": seed}
    write_learned(run, learned, examples)
    run.write("result.json", outcome)
    return outcome


def samples_of(collection: Collection) -> Samples:
    """The examples of a collection."""
    return photographs(collection.paths) if collection.paths is not None else vectors(collection.features)


def read_kept(
    collection: Collection, samples: Samples, sight: Any, device: torch.device, progress: Progress
) -> tuple[Collection, Tensor]:
    """The collection without what cannot be decoded, and its examples as numbers (n, ...)."""
    if samples.kind == "vectors":
        return collection, samples.tensor
    count = len(samples)
    rows, inputs, skipped = sight.read(
        samples.paths, device, advance=lambda done: progress.stage("reading photographs", done, count)
    )
    names = dict(zip(samples.paths, collection.names, strict=True))
    return subset(collection, rows.tolist(), {names[path]: reason for path, reason in skipped.items()}), inputs


def subset(collection: Collection, rows: list[int], skipped: dict[str, str]) -> Collection:
    """Some rows of a collection; why others are left out joins what was skipped before."""
    paths, features = collection.paths, collection.features
    return Collection(
        tuple(collection.names[row] for row in rows),
        tuple(collection.labels[row] for row in rows),
        None if paths is None else tuple(paths[row] for row in rows),
        None if features is None else features[rows],
        collection.columns,
        collection.skipped | skipped,
    )


def _digest(collection: Collection) -> str:
    """Of names, labels and features, or of the sizes of photographs: a run is continued on the same data alone."""
    digest = hashlib.sha256(repr((collection.names, collection.labels)).encode())
    if collection.features is not None:
        digest.update(collection.features.contiguous().numpy().tobytes())
    for path in collection.paths or ():
        digest.update(str(path.stat().st_size).encode())
    return digest.hexdigest()
