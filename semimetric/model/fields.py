"""What the JSON files of a run may hold: the one place that checks it, before any of it is used."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import Any

from semimetric.core.errors import RunError
from semimetric.core.files import shown
from semimetric.training.run import Run

NUMBER, NAMES = int | float, {"names": [str], "classes": [str | int | float], "columns": [str]}
LEVEL = {"level": NUMBER, "coverage": NUMBER, "judged": int, "accuracy": NUMBER | None, "low": NUMBER, "high": NUMBER}
FIELDS: dict[str, dict[str, Any]] = {
    "config.json": dict.fromkeys(("kind", "version"), str)
    | dict.fromkeys(("versions", "plan", "data", "undecoded"), dict),
    "model.json": dict.fromkeys(("kind", "preprocess", "encoder", "module", "backbone", "fit"), str)
    | {"shape": [int], "inputs": [int], "side": int, "frozen_share": NUMBER, "mirror": bool},
    "examples.json": dict.fromkeys(("source", "label_column", "id_column"), str)
    | NAMES
    | {"suggested": [int], "digests": [str]},
    "result.json": dict.fromkeys(("method", "device", "selection", "from"), str)
    | dict.fromkeys(("seed", "epochs", "planned_epochs", "best_epoch", "components"), int)
    | {"seconds": NUMBER, "guards": [str], "interrupted": bool, "initial": dict | None, "final": dict | None}
    | {"trust": ({"epoch": int, "sentence": str, "levels": [LEVEL]}, NoneType)},
    "added.safetensors": {"model": str, "trained": int, "digests": [str]} | NAMES,
}
"""Types of the fields that code reads, by file, checked when it is read. [str] is a list of texts, {"a": int} an object
with a whole number a, a tuple names alternatives."""


def read_fields(run: Run, name: str) -> dict[str, Any]:
    """Return a JSON object of a run, empty if it was never written, with the types of ``FIELDS``."""
    found = run.config() if name == "config.json" else run.read(name)
    return check_fields({} if found is None else found, name, run.path / name)


def check_fields(found: Any, name: str, place: Path) -> dict[str, Any]:
    """Return a JSON object with the fields of ``name``, and refuse any other value."""
    if not isinstance(found, dict):
        raise RunError(f"{place} is damaged: it holds no fields. Start again with another --out.")
    odd = next((field for field in found if not _fits(found[field], FIELDS[name].get(field, object))), None)
    if odd is not None:
        raise RunError(f"{place} is damaged: {odd} is {found[odd]!r:.200}. Start again with another --out.")
    texts = {*found} & {*NAMES}
    return found | {field: [shown(e) if isinstance(e, str) else e for e in found[field]] for field in texts}


def _fits(value: object, kind: Any) -> bool:
    """Return True if a JSON value is of a kind as in ``FIELDS``."""
    if isinstance(kind, list):
        return isinstance(value, list) and all(_fits(entry, kind[0]) for entry in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(name in value and _fits(value[name], kind[name]) for name in kind)
    if isinstance(kind, tuple):
        return any(_fits(value, one) for one in kind)
    return isinstance(value, kind)
