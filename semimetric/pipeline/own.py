"""A user's own data on disk: check it, plan, read it, and fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from semimetric.core.errors import InputError
from semimetric.data import Collection
from semimetric.data.labels import number_labels
from semimetric.data.photographs.images import check_photo_options
from semimetric.data.schema import Schema
from semimetric.methods import METHODS
from semimetric.model.fitted import FittedModel
from semimetric.model.folder import read_config
from semimetric.model.spec import ExampleNames
from semimetric.pipeline.config import run_config, run_opener
from semimetric.pipeline.data import FitData, digest_of, read_all_inputs, samples_of, state_of, subset
from semimetric.pipeline.descriptors import photo_transform
from semimetric.pipeline.fit import build_network, fit
from semimetric.pipeline.plan import Plan
from semimetric.pipeline.resolve import check_own, resolve_own
from semimetric.pipeline.warm import Start
from semimetric.training import Progress, Run, Silent, choose_device


@dataclass(frozen=True)
class OwnRequest:
    """What a user asks for; ``settings`` are of the network, the training and the method, by name.

    With a ``start`` its settings hold where none are given, and its method and its fine-tuning hold.
    """

    method: str = "consensus"
    seed: int = 0
    device: str = "auto"
    fine_tune: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    start: Start | None = None

    def check(self) -> None:
        """Refuse settings that fit no data, before any is read."""
        choose_device(self.device)
        before = {} if self.start is None else self.start.settings(self.settings)
        method = self.method if self.start is None else self.start.plan.method
        check_own(method, self.seed, **before | self.settings)

    def plan(self, collection: Collection, like: Plan | None = None) -> Plan:
        """The plan for a collection; data that the method cannot learn from is refused.

        A network trained from scratch on photographs is that of ``like``, a plan for some more of them.
        """
        method, fine_tune, before = self.method, self.fine_tune, {}
        samples, labels = samples_of(collection), number_labels(collection.labels)[1]
        if self.start is not None:
            self.start.check_request(samples.kind, method, self.settings.get("encoder"))
            method, before = self.start.plan.method, self.start.settings(self.settings)
            fine_tune = bool(self.start.plan.own_network().get("fine_tune"))
        check_enough(method, collection)
        where = choose_device(self.device)
        same = {} if like is None else _scratch_encoder(like)
        settings = scaling_of(collection.schema) | same | before | self.settings
        plan = resolve_own(samples.kind, samples.shape(), labels, where, method, self.seed, fine_tune, **settings)
        return plan if self.start is None else self.start.shortened(plan, self.settings)


def _scratch_encoder(plan: Plan) -> dict[str, Any]:
    """The setting of a plan's network, if photographs train it from scratch."""
    network = plan.network
    return {"encoder": network.encoder} if network.side and not network.weights and plan.module is None else {}


def scaling_of(schema: Schema | None) -> dict[str, Any]:
    """The setting of the network that leaves features alone which a schema has scaled."""
    return {"preprocess": "none"} if schema is not None and schema.encodes else {}


@dataclass(frozen=True)
class OwnData:
    """A collection that has been read, with the plan for it; ``found`` has also what cannot be decoded."""

    plan: Plan
    data: FitData
    collection: Collection
    encoder: nn.Module | None
    found: Collection


def read_own(
    request: OwnRequest,
    collection: Collection,
    source: Path,
    columns: tuple[str | None, str | None] = (None, None),
    progress: Progress | None = None,
    tell: Callable[[Collection], None] | None = None,
) -> OwnData:
    """Plan, and read the examples; what can be refused is refused before any photograph is read.

    Parameters
    ----------
    columns : columns of labels and of names that the user named of a table
    tell : is given the collection without the photographs that cannot be decoded
    """
    plan = request.plan(collection)
    if plan.note and progress is not None:
        show = progress.warn if plan.network.weights_file() is None else progress.tell
        show(plan.note)
    device, side = choose_device(request.device), plan.network.side
    if side:
        check_photo_options(side, plan.network.fit, workers=None)
    encoder = build_network(plan, (3, side, side)) if side and not plan.network.backbone else None
    transform = photo_transform(plan.network, plan.seed) if side else None
    kept, inputs = read_all_inputs(collection, transform, device, progress)
    if tell is not None:
        tell(kept)
    samples = samples_of(kept)
    classes, labels = number_labels(kept.labels)
    named = columns if kept.features is not None else (None, None)
    label_column, id_column = (name or "" for name in named)
    names = ExampleNames(
        kept.names,
        str(source.resolve()),
        tuple(classes),
        kept.columns,
        label_column,
        id_column,
        kept.suggested_rows,
        kept.digests,
    )
    found = {"found": kept.as_dict()}
    shape, schema = samples.shape(), kept.schema
    data = FitData(samples.kind, shape, inputs, labels, names, transform, facts=found, schema=schema)
    return OwnData(request.plan(kept, plan), data, kept, encoder, collection)


def fit_own(
    request: OwnRequest,
    collection: Collection,
    source: Path,
    out: Path,
    resume: bool = False,
    progress: Progress | None = None,
    tell: Callable[[Collection], None] | None = None,
    columns: tuple[str | None, str | None] = (None, None),
) -> dict[str, Any]:
    """Fit a collection and write the run folder ``out``; with ``resume`` continue it.

    Returns
    -------
    dict
        The outcome, as in ``result.json``.
    """
    progress = progress or Silent()
    own = read_own(request, collection, source, columns, progress, tell)
    return fit_read(request, own, source, out, resume, progress).facts


def fit_read(
    request: OwnRequest, own: OwnData, source: Path, out: Path, resume: bool = False, progress: Progress | None = None
) -> FittedModel:
    """Fit a collection that has been read, and write the run folder ``out``. The data is released."""
    config = _config(request, own.plan, source, own.found, own.collection)
    device = choose_device(request.device)
    return fit(own.plan, own.data, device, run_opener(out, config, resume), progress, own.encoder, request.start)


def config_before(request: OwnRequest, collection: Collection, source: Path, out: Path) -> dict[str, Any]:
    """Return the config that the run in ``out`` must have to be continued, before any example is read.

    Files that could not be decoded when the run began, and have not changed, are left out as they were then.
    """
    left = read_config(Run.open(out)).get("undecoded", {})
    files = zip(collection.names, collection.paths or (), strict=False)
    gone = {name for name, path in files if name in left and left[name] == state_of(path)}
    rows = [row for row, name in enumerate(collection.names) if name not in gone]
    kept = subset(collection, rows, {}) if gone else collection
    return _config(request, request.plan(kept, request.plan(collection)), source, collection, kept)


def _config(request: OwnRequest, plan: Plan, source: Path, found: Collection, kept: Collection) -> dict[str, Any]:
    """The config of a run on ``kept``, those of the examples ``found`` that can be decoded."""
    digest = plan.network.weights_digest() if plan.network.weights else None
    data = {"source": source.resolve().name, "digest": digest_of(kept), "examples": len(kept)}
    data |= {} if request.start is None else {"from": request.start.digest}
    paths = dict(zip(found.names, found.paths or (), strict=False))
    undecoded = {name: state_of(paths[name]) for name in paths.keys() - {*kept.names}}
    return run_config("own data", plan, data, digest) | {"undecoded": undecoded}


def check_enough(method: str, collection: Collection) -> None:
    """Refuse examples that are too few, or without the labels that the method learns from."""
    METHODS.check(method)
    what = "photograph" if collection.paths is not None else "row"
    if len(collection) < 2:
        skipped = f"; {len(collection.skipped)} were skipped" if collection.skipped else ""
        raise InputError(
            f"there must be at least 2 {what}s to compare, and {len(collection)} can be used{skipped}. Add some."
        )
    if not METHODS[method].needs.labels or METHODS[method].labels_optional:
        return
    if not collection.classes:
        how = (
            "Put those of a class into a sub-folder with its name, or list them with --labels FILE; in a .tar archive, "
            "put a .cls file with the label beside each"
        )
        how = how if what == "photograph" else "Fill in the column of labels for some, and name it with --label-column"
        raise InputError(
            f"no {what} has a label, and method {method!r} learns from labels. {how}; or use a method that needs "
            "none: --method instance or stml."
        )
    if len(collection.classes) == 1:
        raise InputError(
            f"all labels are {collection.classes[0]!r}, and method {method!r} learns from at least 2 classes. Label "
            "some examples of another class, or use a method that needs no labels: --method instance or stml."
        )
