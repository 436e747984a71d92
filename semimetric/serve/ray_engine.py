"""Many shards embedded by Ray Data, on this machine or on a cluster."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import dataclass
from typing import Any

from semimetric.core.errors import InputError, SemimetricError
from semimetric.core.extras import import_extra
from semimetric.model.folder import load_run
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


class _Worker:
    """Loads the run once, and embeds one shard at a time."""

    def __init__(self, work: ShardWork, device: str) -> None:
        self._work, self._loaded = work, load_run(work.run, device)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        shard = str(row["shard"])
        try:
            return self._work.embed(self._loaded, shard)
        except (SemimetricError, OSError) as error:
            return {"shard": shard, "examples": 0, "skipped": "{}", "reason": str(error)}


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
        finally:
            ray.shutdown()
    skipped = {name: reason for row in rows for name, reason in json.loads(row["skipped"]).items()}
    failed = {row["shard"]: row["reason"] for row in rows if row["reason"]}
    examples = sum(int(row["examples"]) for row in rows)
    return {"shards": len(rows) - len(failed), "examples": examples, "skipped": skipped, "failed": failed}


def _start(ray: Any, data: Any, address: str) -> None:
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
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


def _rows(data: Any, work: ShardWork, cluster: Cluster, shards: list[str]) -> Any:
    """A row for each shard, as soon as it is done."""
    listed = data.from_items([{"shard": shard} for shard in shards], override_num_blocks=len(shards))
    embedded = listed.map(
        _Worker,
        fn_constructor_args=(work, cluster.device),
        concurrency=min(cluster.workers, len(shards)),
        num_cpus=1,
        num_gpus=1 if cluster.on_gpu() else 0,
    )
    return embedded.iter_rows()
