"""One fit of the experiments: its settings, the command that repeats it, and what identifies its result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import semimetric
from semimetric.core.files import sha256_of
from semimetric.data.benchmarks.official import FileSpec
from semimetric.data.benchmarks.photographs import PhotoSpec
from semimetric.data.benchmarks.registry import DATASETS, find_photographs
from semimetric.pipeline.plan import Plan

COMPUTING = (
    "core",
    "data",
    "encoders",
    "graph",
    "mining",
    "metric",
    "losses",
    "methods",
    "evaluation",
    "training",
    "model",
    "pipeline",
)
"""Rooms whose code decides what a fit learns and scores."""

PLACES = ("weights", "descriptors")
"""Settings that say where a file is; they do not change a result."""


@dataclass(frozen=True)
class Cell:
    """A method on a dataset with a seed, a preset and changed settings.

    Parameters
    ----------
    keeps : what is kept besides scores: "map" for the t-SNE map of the test set, "neighbors" for retrieved examples
    scored : whether the test set is scored; cells that choose a setting are judged by withheld training data alone
    """

    dataset: str
    method: str
    seed: int
    preset: str = "paper"
    settings: Mapping[str, Any] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()
    scored: bool = True

    def plan(self, weights: Path | None = None, descriptors: Path | None = None) -> Plan:
        """All settings in force; ``weights`` are those of the pretrained network, ``descriptors`` caches its features.

        Both are left out where the plan has no use for them.
        """
        from semimetric.encoders.registry import takes_photographs
        from semimetric.pipeline.resolve import resolve_benchmark

        plan = resolve_benchmark(self.dataset, self.method, self.seed, self.preset, **self.settings)
        network = plan.network
        pretrained = bool(network.backbone) or takes_photographs(network.encoder)
        places = {"weights": str(weights)} if weights and pretrained else {}
        places |= {"descriptors": str(descriptors)} if descriptors and network.backbone else {}
        return resolve_benchmark(self.dataset, self.method, self.seed, self.preset, **{**self.settings, **places})

    def command(self) -> str:
        """The command that repeats this fit alone."""
        words = ["semimetric", "fit", "--dataset", self.dataset, "--method", self.method, "--preset", self.preset]
        words += ["--seed", str(self.seed)]
        for name, value in sorted(self.settings.items()):
            flag = name.replace("_", "-")
            words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", _shown(value)]
        places = ["--weights", "WEIGHTS"] if isinstance(DATASETS[self.dataset], PhotoSpec) else []
        return " ".join([*words, *places, "--out", "RUN"])

    @property
    def identity(self) -> tuple[str, bool]:
        """The fit as something that can be compared and looked up, whatever is kept of it."""
        return self.command(), self.scored

    def name(self) -> str:
        """A short name for people."""
        changed = [f"{name} {_shown(value)}" for name, value in sorted(self.settings.items())]
        return ", ".join([f"{self.dataset} {self.method} {self.preset}", *changed, f"seed {self.seed}"])


def _shown(value: Any) -> str:
    text = str(value)
    if isinstance(value, float) and float(f"{value:g}") == value:
        text = f"{value:g}"
    return text if text else "''"


def settings_of(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values, without the places of files."""
    values = plan.as_dict()
    network = {name: value for name, value in values["network"].items() if name not in PLACES}
    return values | {"network": network}


def fit_key(cell: Cell, plan: Plan) -> str:
    """What identifies a fit, whatever the code, the copy of the data, and what is kept of it.

    Settings count where they differ from their general defaults, so that a new one with a neutral default changes no
    key.
    """
    groups = {name: getattr(plan, name) for name in ("network", "split", "training", "pretraining", "method_settings")}
    changed = {name: _changed(settings) for name, settings in groups.items()}
    return _digest([plan.dataset, plan.method, plan.seed, changed, cell.scored])


def key_of(cell: Cell, plan: Plan, data: str, weights: str | None) -> str:
    """What identifies the result of a cell: the fit, the data and the weights."""
    return f"{fit_key(cell, plan)}-{_digest([data, weights])[:6]}"


def same_settings(plan: Mapping[str, Any], today: Plan) -> bool:
    """Whether the settings of a record are those of a plan today; ones that the record does not know do not count."""
    groups = settings_of(today)
    return all(
        known == groups[group]
        if not isinstance(known, dict)
        else all(groups[group].get(n) == v for n, v in known.items())
        for group, known in plan.items()
        if group in groups
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _changed(settings: Any) -> dict[str, Any]:
    """The settings that differ from their defaults, without the places of files."""
    values = {field.name: (getattr(settings, field.name), field.default) for field in dataclasses.fields(settings)}
    return {name: value for name, (value, default) in values.items() if value != default and name not in PLACES}


@cache
def code_version() -> str:
    """The version, and a digest of the source code that decides what a fit learns and scores."""
    package = Path(semimetric.__file__).parent
    digest = hashlib.sha256()
    for room in COMPUTING:
        for path in sorted((package / room).rglob("*.py")):
            digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return f"{semimetric.__version__}+{digest.hexdigest()[:8]}"


@cache
def data_version(dataset: str, data_dir: Path | None) -> str:
    """A digest of the names and sizes of photographs; other datasets are built in, or checked when they are loaded."""
    found = find_photographs(dataset, data_dir)
    if found is None:
        return "official files" if isinstance(DATASETS[dataset], FileSpec) else "built in"
    content = [(found.name_of(path), path.stat().st_size) for path in found.album.paths]
    return _digest(sorted(content))


@cache
def weights_version(weights: Path | None) -> str | None:
    """SHA-256 of a weights file."""
    return None if weights is None else sha256_of(weights)
