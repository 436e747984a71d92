"""Estimators and run folders: a collection becomes a run, a run becomes the fitted estimator again."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

import semimetric
from semimetric.core.errors import InputError, RunError
from semimetric.core.files import sha256_of
from semimetric.data import Collection
from semimetric.data.labels import number_labels
from semimetric.data.photographs.images import check_photo_options
from semimetric.data.samples import Kind, Samples, photographs, vectors
from semimetric.encoders.photographs import Sight
from semimetric.estimators.linear import APIT, APLLR, ISDML, LRML, SERAPH
from semimetric.estimators.semimetric import MetricEstimator, SemiMetric, seed_of
from semimetric.methods import METHODS
from semimetric.model.folder import Examples, read_learned, version_differences, versions, write_learned
from semimetric.pipeline.choice import Choice, choose, settings_for
from semimetric.pipeline.learn import encoder_for, learn
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
    check_is_fitted(estimator)
    if Path(path).exists():
        raise InputError(f"{path} is there already, and a run is never overwritten. Choose another path, or remove it.")
    if type(estimator) not in ESTIMATORS.values():
        raise InputError(
            f"{type(estimator).__name__} is a class of your own, which load does not know. Save the estimator that it "
            "is made of."
        )
    learned = estimator.learned_
    names = tuple(str(name) for name in (range(len(learned.labels)) if names is None else names))
    if len(names) != len(learned.labels):
        raise InputError(f"names must be of the {len(learned.labels)} examples of fit, got {len(names)}.")
    run = Run.create(Path(path), _config(estimator) | {"data": {"examples": len(names)}})
    columns = tuple(str(name) for name in getattr(estimator, "feature_names_in_", ()))
    write_learned(run, learned, Examples(names, "", tuple(estimator.classes_), columns))
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
    if str(name) not in ESTIMATORS or not isinstance(params, dict):
        raise RunError(
            f"{path} is of an estimator {name!r} that this version ({semimetric.__version__}) does not know. Load it "
            f"with the version that wrote it ({config.get('version', 'unknown')})."
        )
    learned, examples = read_learned(run, choose_device(device), encoder)
    if encoder is not None:
        params = params | {"encoder": encoder}
    try:
        estimator = ESTIMATORS[name](**params)
    except TypeError as error:
        raise RunError(
            f"{path} has settings that this version ({semimetric.__version__}) does not know: {error}. Train it again."
        ) from error
    estimator.n_features_in_ = prod(learned.built.shape)
    if examples.columns:
        estimator.feature_names_in_ = np.array(examples.columns, dtype=object)
    estimator.adopt(learned, np.asarray(examples.classes))
    return Loaded(estimator, examples, version_differences(config.get("versions")))


def _config(estimator: MetricEstimator) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    return {
        "version": semimetric.__version__,
        "versions": versions(),
        "estimator": type(estimator).__name__,
        "params": {name: _as_json(value) for name, value in params.items()},
    }


def _as_json(value: Any) -> Any:
    """A parameter as JSON holds it; a module, and a generator of random numbers, are not held."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _as_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(entry) for entry in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return "auto" if isinstance(value, nn.Module) else None


def fit_collection(
    estimator: SemiMetric,
    collection: Collection,
    source: Path,
    out: Path,
    resume: bool = False,
    progress: Progress | None = None,
    tell: Callable[[Collection], None] | None = None,
    columns: tuple[str | None, str | None] = (None, None),
) -> dict[str, Any]:
    """Learn from a collection, writing to the run folder ``out``; with ``resume`` continue what is there.

    Photographs that cannot be decoded are left out, and named in the outcome; ``tell`` is given what remains before
    anything is trained. ``columns`` are those of labels and of names that the user named of a table: new examples may
    have them as well.
    """
    progress = progress or Silent()
    device = choose_device(estimator.device)
    seed = seed_of(estimator.random_state)
    samples = samples_of(collection)
    choice = choose(samples.kind, samples.shape(), estimator.method, estimator.wishes(), device)
    if not resume:
        Run.check_free(out)
    _check_early(estimator, collection, choice, seed)
    if choice.why:
        progress.warn(choice.why)
    sight = choice.sight(seed)
    kept, inputs = read_kept(collection, samples, sight, device, progress)
    if tell is not None:
        tell(kept)
    _check_enough(estimator.method, kept)
    classes, labels = number_labels(kept.labels)
    task = estimator.task(samples, inputs, labels, choice, sight, seed)
    config = _config(estimator) | _origin(kept, source, choice)

    def start() -> Run:
        if not resume:
            return Run.create(out, config)
        _check_same_data(out, config)
        return Run.resume(out, config)

    learned = learn(task, device, start, progress)
    run = Run.open(out)
    named = columns if kept.features is not None else (None, None)
    examples = Examples(
        kept.names, str(source.resolve()), tuple(classes), kept.columns, *(name or "" for name in named)
    )
    outcome = learned.facts | {"found": kept.as_dict(), "method": estimator.method, "run": str(out)}
    outcome |= {"components": learned.embeddings.shape[1], "device": device.type, "seed": seed}
    write_learned(run, learned, examples)
    run.write("result.json", outcome)
    return outcome


def _check_early(estimator: SemiMetric, collection: Collection, choice: Choice, seed: int) -> None:
    """Refuse what can be told to be wrong before thousands of photographs are read for nothing."""
    _check_enough(estimator.method, collection)
    if choice.side:
        check_photo_options(choice.side, "crop", workers=None)
    if choice.side and not choice.backbone:
        encoder_for(choice, (3, choice.side, choice.side), seed)
    kind: Kind = "photographs" if collection.paths is not None else "vectors"
    linear = choice.encoder == "none"
    material, labels = choice.material(kind), number_labels(collection.labels)[1]
    settings_for(estimator.method, material, labels, estimator.changes(), linear)


def _check_enough(method: str, collection: Collection) -> None:
    """Refuse examples that are too few, or without the labels that the method learns from."""
    what = "photograph" if collection.paths is not None else "row"
    if len(collection) < 2:
        skipped = f"; {len(collection.skipped)} were skipped" if collection.skipped else ""
        raise InputError(
            f"there must be at least 2 {what}s to compare, and {len(collection)} can be used{skipped}. Add some."
        )
    if not METHODS[method].needs.labels:
        return
    if not collection.classes:
        how = "Put those of a class into a sub-folder with its name, or list them with --labels FILE"
        how = how if what == "photograph" else "Fill in the column of labels for some, and name it with --label-column"
        raise InputError(
            f"no {what} has a label, and method {method!r} learns from labels. {how}; or take a method that needs "
            "none: --method instance."
        )
    if len(collection.classes) == 1:
        raise InputError(
            f"all labels are {collection.classes[0]!r}, and method {method!r} learns from at least 2 classes. Label "
            "some examples of another class, or take a method that needs no labels: --method instance."
        )


def _origin(collection: Collection, source: Path, choice: Choice) -> dict[str, Any]:
    """What a run is continued on alone: the same data, and the same network, which may depend on the device."""
    encoder = choice.encoder if isinstance(choice.encoder, str) else type(choice.encoder).__qualname__
    network = {"encoder": encoder, "backbone": choice.backbone, "side": choice.side, "preprocess": choice.preprocess}
    weights = None if choice.weights is None else sha256_of(choice.weights)
    data = {"source": source.resolve().name, "digest": digest_of(collection), "examples": len(collection)}
    return {"data": data, "network": network | {"weights_sha256": weights}}


def _check_same_data(out: Path, config: dict[str, Any]) -> None:
    if not (out / "config.json").is_file():
        return
    before = Run.open(out).config().get("data")
    if isinstance(before, dict) and before.get("digest", "") != config["data"]["digest"]:
        raise RunError(
            f"{out} was started with other data: {before.get('examples', 'some')} examples were used then, and now "
            f"{config['data']['examples']}, or their names, labels or contents differ. Resume with the same data, or "
            "choose another --out."
        )


def samples_of(collection: Collection) -> Samples:
    """The examples of a collection."""
    return photographs(collection.paths) if collection.paths is not None else vectors(collection.features)


def read_kept(
    collection: Collection, samples: Samples, sight: Sight | None, device: torch.device, progress: Progress
) -> tuple[Collection, Tensor]:
    """The collection without what cannot be decoded, and its examples as numbers (n, ...)."""
    if samples.kind == "vectors":
        return collection, samples.tensor if sight is None else sight.describe(samples.tensor, device)
    assert sight is not None
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


def digest_of(collection: Collection) -> str:
    """Of names, labels and features, or of the sizes of photographs and when they were last changed."""
    digest = hashlib.sha256(repr((collection.names, collection.labels)).encode())
    if collection.features is not None:
        digest.update(collection.features.contiguous().numpy().tobytes())
    for path in collection.paths or ():
        status = path.stat()
        digest.update(f"{status.st_size} {status.st_mtime_ns};".encode())
    return digest.hexdigest()
