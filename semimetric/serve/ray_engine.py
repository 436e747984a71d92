"""Many shards embedded by Ray Data, on this machine or on a cluster."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from semimetric.core.errors import InputError, RunError, SemimetricError
from semimetric.core.extras import import_extra
from semimetric.model.folder import LoadedRun, load_run
from semimetric.serve.shards import ShardWork
from semimetric.training import Progress, Silent, choose_device

SECONDS = 10.0
"""How long an address may take to answer."""


@dataclass(frozen=True)
class Cluster:
    """Where Ray runs, and how many workers each hold the run; without an ``address`` Ray is started here."""

    address: str = ""
    workers: int = 1
    device: str = "auto"

    def on_gpu(self) -> bool:
        """Whether each worker asks for a GPU; those of a cluster only if the device is named."""
        return self.device == "cuda" if self.address else choose_device(self.device).type == "cuda"


class ShardWorker:
    """Loads the run once, and embeds one shard at a time; what goes wrong is told as the reason of the shard.

    An error that left this class would reach the user as a traceback of Ray.
    """

    def __init__(self, work: ShardWork, device: str) -> None:
        self._work, self._device = work, device

    @cached_property
    def _loaded(self) -> LoadedRun:
        return load_run(self._work.run, self._device)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Embed the shard of a row that holds its name and version."""
        shard = str(row["shard"])
        try:
            return self._work.embed(self._loaded, shard, str(row["version"]))
        except (SemimetricError, OSError) as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return {"shard": shard, "examples": 0, "skipped": "{}", "reason": reason}


def embed_with_ray(work: ShardWork, cluster: Cluster, progress: Progress | None = None) -> dict[str, Any]:
    """Embed all shards without a result.

    Returns
    -------
    dict
        Numbers of shards, of those that were done before, and of examples; ``skipped`` examples and ``failed`` shards
        with their reasons.
    """
    ray = import_extra("ray", "ray", "--engine ray")
    data = import_extra("ray.data", "ray", "--engine ray")
    left = work.begin()
    progress = progress or Silent()
    rows: list[dict[str, Any]] = []
    if left:
        _start(ray, data, cluster.address)
        try:
            for row in _rows(data, work, cluster, left):
                rows.append(row)
                progress.stage("shards embedded", len(rows), len(left))
        except ray.exceptions.RayError as error:
            raise RunError(
                f"Ray ended after {len(rows)} of {len(left)} shards: {_first_line(error)}. Results that are there are "
                "whole; the same command continues."
            ) from error
        finally:
            ray.shutdown()
    skipped = {name: reason for row in rows for name, reason in json.loads(row["skipped"]).items()}
    failed = {row["shard"]: row["reason"] for row in rows if row["reason"]}
    examples = sum(int(row["examples"]) for row in rows)
    return {"shards": len(rows) - len(failed), "examples": examples, "skipped": skipped, "failed": failed}


def _start(ray: Any, data: Any, address: str) -> None:
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it prints tracebacks of errors that it raises as well
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        _check_answers(address)
        ray.init(address=address or "local", **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"Ray at {address or 'this machine'} cannot be reached: {error}. Check --address.") from error


def _check_answers(address: str) -> None:
    """Raise if nobody listens at an address with a port: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=SECONDS).close()


def _first_line(error: Exception) -> str:
    """What Ray says went wrong, without the traceback below it."""
    return str(error).strip().split("\n", 1)[0].rstrip(".:") or type(error).__name__


def _rows(data: Any, work: ShardWork, cluster: Cluster, shards: dict[str, str]) -> Any:
    """A row for each shard, as soon as it is done; ``shards`` have their versions."""
    items = [{"shard": shard, "version": version} for shard, version in shards.items()]
    listed = data.from_items(items, override_num_blocks=len(items))
    embedded = listed.map(
        ShardWorker,
        fn_constructor_args=(work, cluster.device),
        concurrency=min(cluster.workers, len(shards)),
        num_cpus=1,
        num_gpus=1 if cluster.on_gpu() else 0,
    )
    return embedded.iter_rows()
