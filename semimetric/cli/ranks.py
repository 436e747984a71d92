"""``--devices`` and ``--nodes``: a command that starts itself once for each device, and works as these ranks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Annotated

import typer

from semimetric.cli.console import stderr
from semimetric.core.errors import InputError, RunError, SemimetricError
from semimetric.core.world import wanted
from semimetric.reporting.terminal import marked

PANEL = "Several devices"

Devices = Annotated[
    int, typer.Option(min=1, help="GPUs, or processes on the CPU, of each machine.", rich_help_panel=PANEL)
]
Nodes = Annotated[int, typer.Option(min=1, help="Machines, each with as many devices.", rich_help_panel=PANEL)]
Rendezvous = Annotated[
    str,
    typer.Option(
        help="HOST:PORT of one of several machines, on which they meet. Every machine runs the same command.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Ranks:
    """How many processes fit one model, and where they meet."""

    devices: int = 1
    nodes: int = 1
    rendezvous: str = ""

    @property
    def size(self) -> int:
        """Number of processes on all machines."""
        return self.devices * self.nodes

    def to_start(self) -> bool:
        """Whether this process is to start the ranks, and is none itself; refuses what cannot be."""
        started = wanted().size
        if started > 1 and self.size not in (1, started):
            raise InputError(
                f"--devices {self.devices} and --nodes {self.nodes} are {self.size} processes, and {started} were "
                "started, as WORLD_SIZE says. Give torchrun the same numbers, or leave both options out."
            )
        if started == 1 and self.nodes > 1 and not self.rendezvous:
            raise InputError(
                f"--nodes {self.nodes} needs --rendezvous HOST:PORT, the address of one of the machines. Run the same "
                "command on each of them."
            )
        return started == 1 and self.size > 1

    def start(self) -> int:
        """Run this command once for each device of this machine, and return its exit code."""
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.devices)))
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks speak for themselves
        config = LaunchConfig(
            min_nodes=self.nodes,
            max_nodes=self.nodes,
            nproc_per_node=self.devices,
            run_id="semimetric",
            rdzv_backend="c10d",
            rdzv_endpoint=self.rendezvous or "localhost:0",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "semimetric", *sys.argv[1:])
        except ChildFailedError as error:
            return _exit_code([failure.exitcode for failure in error.failures.values()])
        except SignalException as error:
            raise KeyboardInterrupt from error
        return 0


def _exit_code(codes: list[int]) -> int:
    """The exit code of ranks that failed; one that was killed said nothing, so it is said here."""
    killed = [-code for code in codes if code < 0]
    if killed:
        raise RunError(
            f"a process of this fit was killed by signal {killed[0]}. What was saved before is untouched; continue "
            "with the same command and --resume."
        )
    return codes[0]


@contextmanager
def working_together(device: str) -> Iterator[None]:
    """Join the ranks that the environment names; the first one alone speaks, the others tell their errors."""
    if wanted().size == 1:
        yield
        return
    from semimetric.core.ranks import FirstFailed, RankLost, joined
    from semimetric.training.device import choose_device

    on_gpu = choose_device(device).type == "cuda"
    try:
        with ExitStack() as after:
            here = after.enter_context(joined(on_gpu))
            if here.rank:
                nowhere = after.enter_context(open(os.devnull, "w", encoding="utf-8"))
                after.enter_context(redirect_stdout(nowhere))
                after.enter_context(redirect_stderr(nowhere))
            yield
    except FirstFailed:
        raise typer.Exit(2) from None
    except RankLost as error:
        stderr.print(marked("error:", "red", str(error)))
        sys.stderr.flush()
        os._exit(2)  # the threads of the transport wait for the lost rank: an orderly exit may abort
    except SemimetricError as error:
        here = wanted()
        if here.rank == 0:
            raise
        raise type(error)(f"process {here.rank + 1} of {here.size}: {error}") from error
