"""What a run folder says of itself: its format, its kind, the plan and the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import semimetric
from semimetric.core import ranks
from semimetric.core.errors import RunError
from semimetric.core.locks import Lock
from semimetric.model.folder import FORMAT, read_config
from semimetric.model.versions import versions
from semimetric.pipeline.fit import OpenRun
from semimetric.pipeline.plan import Plan, RunKind
from semimetric.training import Run


def run_config(kind: RunKind, plan: Plan, data: dict[str, Any], weights_sha256: str | None) -> dict[str, Any]:
    """The config.json of a run."""
    return {
        "format": FORMAT,
        "kind": kind,
        "version": semimetric.__version__,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "plan": plan.as_dict(),
        "data": data,
        "undecoded": {},
        "weights_sha256": weights_sha256,
    }


def check_place(out: Path, resume: bool, config: Callable[[], dict[str, Any]] | None = None) -> None:
    """Refuse a folder that cannot become a run, before any data is read; with ``resume`` a run there may be continued.

    A run that is in use, or has other settings or data than ``config`` makes, is refused too.
    """

    def check() -> None:
        if not resume or not (out / "config.json").is_file():
            Run.check_free(out)
        elif config is not None:
            run_opener(out, config(), resume)().lock.release()

    ranks.on_first(check)


def run_opener(out: Path, config: dict[str, Any], resume: bool) -> OpenRun:
    """Creates the run, or continues it, and locks it; one of other data or of another format is refused."""

    def open_run() -> Run:
        lock = Lock(out)
        lock.acquire()
        try:
            if resume and (out / "config.json").is_file():
                _check_same_data(out, config)
            run = Run.resume(out, config) if resume else Run.create(out, config)
        except BaseException:
            lock.release()
            raise
        run.lock = lock
        return run

    return open_run


def _check_same_data(out: Path, config: dict[str, Any]) -> None:
    known = read_config(Run.open(out))["data"]
    if known.get("digest") != config["data"].get("digest"):
        raise RunError(
            f"{out} was started with other data: {known.get('examples', 'some')} examples were used then, and now "
            f"{config['data'].get('examples', 'others')}, or their names, labels or contents differ. Resume with the "
            "same data, or choose another --out."
        )
