"""``semimetric embed --engine ray``: many shards, on this machine or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semimetric.cli.console import counted, print_json, say, showing_progress
from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.reporting.terminal import visible

PANEL = "Many shards"

Engine = Annotated[
    str, typer.Option(help="local, or ray for a folder or URL of shards, each with a result.", rich_help_panel=PANEL)
]
Address = Annotated[
    str,
    typer.Option(
        help="Address of a Ray cluster, or auto; without it Ray is started here.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
Workers = Annotated[
    int, typer.Option(min=0, help="Processes that embed. (Default 1.)", rich_help_panel=PANEL, show_default=False)
]
ResultFormat = Annotated[
    str,
    typer.Option(
        "--format", help="Results: parquet or tar. (Default parquet.)", rich_help_panel=PANEL, show_default=False
    ),
]


def by_ray(engine: str, address: str, workers: int, result_format: str, **others: object) -> bool:
    """Whether Ray is asked for; options that mean nothing for the engine are refused."""
    check_choice(engine, ("local", "ray"), "engine")
    if engine == "local" and (address or workers or result_format):
        raise InputError("--address, --workers and --format are for --engine ray. Add it, or leave them out.")
    if engine == "ray" and any(others.values()):
        raise InputError("--replace, --raw, --label-column and --id-column are not for --engine ray. Leave them out.")
    return engine == "ray"


def embed_shards(
    run: Path,
    source: str,
    out: str,
    result_format: str,
    cluster: tuple[str, int, str],
    quiet: bool,
    as_json: bool,
) -> None:
    """Embed the shards that have no result yet, and say what was done."""
    from semimetric.serve.ray_engine import Cluster, embed_with_ray
    from semimetric.serve.shards import ShardWork

    check_choice(result_format, ("parquet", "tar"), "format")
    work = ShardWork(run.resolve(), _absolute(source), _absolute(out), result_format)  # type: ignore[arg-type]
    with showing_progress(lambda: "the same command continues", quiet) as progress:
        found = embed_with_ray(work, Cluster(*cluster), progress)
    if as_json:
        print_json(found | {"out": out})
    else:
        done = f"{counted(found['shards'], 'shard')}, {counted(found['examples'], 'example')}"
        say(f"{done} embedded; results in {visible(out)}")
    if found["failed"]:
        shard, reason = next(iter(found["failed"].items()))
        raise InputError(
            f"{counted(len(found['failed']), 'shard')} could not be embedded, the first {shard}: {reason} The same "
            "command tries again."
        )


def _absolute(place: str) -> str:
    """The place for processes that run elsewhere."""
    return place if "://" in place else str(Path(place).resolve())
