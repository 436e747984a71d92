"""Run the cells that have no result yet, side by side in spawned processes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from semimetric.core.errors import InputError
from semimetric.core.files import check_input
from semimetric.data.benchmarks.registry import describe_datasets
from semimetric.encoders.registry import takes_photographs
from semimetric.paper.cells import Cell, code_version, fit_key, same_settings
from semimetric.paper.records import Record, Records, Reuse
from semimetric.paper.work import Place, describe, run_cell
from semimetric.training.progress import Progress, Silent

WORKERS_ON_GPU = 6
"""Processes that share a GPU unless said otherwise: the networks of the paper are small."""


@dataclass
class Grid:
    """The cells of some experiments, those that have a result, and those that do not.

    Parameters
    ----------
    numbers : cell numbers by the identity of a cell; several cells may have the same settings in force
    found : results by cell number
    missing : cell numbers without a result
    failed : why, by cell number
    """

    cells: list[Cell] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    found: dict[int, Record] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def record(self, cell: Cell) -> Record | None:
        """The result of a cell, if there is one that holds what the cell keeps."""
        record = self.found.get(self.numbers.get(cell.identity, -1))
        return record if record is not None and {*cell.keeps} <= {*record["kept"]} else None


def plan_grid(cells: Iterable[Cell], records: Records, place: Place, reuse: Reuse) -> Grid:
    """Which cells have a result that may be reused.

    Cells with equal settings are one fit, which keeps what any of them asks for.
    """
    grid, seen = Grid(), dict[str, int]()
    for cell in cells:
        number = grid.numbers[cell.identity] = seen.setdefault(place.key(cell), len(grid.cells))
        if number == len(grid.cells):
            grid.cells.append(cell)
        else:
            known = grid.cells[number]
            grid.cells[number] = dataclasses.replace(known, keeps=tuple(sorted({*known.keeps, *cell.keeps})))
    for key, number in seen.items():
        cell = grid.cells[number]
        record = records.find(cell.dataset, key)
        if record is not None and _serves(record, cell, reuse):
            grid.found[number] = record
            continue
        grid.missing.append(number)
        if record is not None:  # what takes its place keeps as much
            grid.cells[number] = dataclasses.replace(cell, keeps=tuple(sorted({*cell.keeps, *record["kept"]})))
    return grid


def grid_of_records(cells: Iterable[Cell], records: Records) -> Grid:
    """The grid of what is there already, whatever code and copy of the data it came from; nothing can be run with it.

    It needs neither the data nor the weights.
    """
    known = {record["key"].partition("-")[0]: record for record in records.all()}
    grid = Grid()
    for cell in cells:
        if cell.identity in grid.numbers:
            continue
        number = grid.numbers[cell.identity] = len(grid.cells)
        grid.cells.append(cell)
        plan = cell.plan()
        record = known.get(fit_key(cell, plan))
        if record is not None and same_settings(record["plan"], plan):
            grid.found[number] = record
        else:
            grid.missing.append(number)
    return grid


def _serves(record: Record, cell: Cell, reuse: Reuse) -> bool:
    """Whether a result is of these settings and this code, unless any will do, and holds what the cell keeps."""
    if reuse == "none" or not {*cell.keeps} <= {*record["kept"]}:
        return False
    if reuse == "same-code" and record["code"] != code_version():
        return False
    return same_settings(record["plan"], cell.plan())


def check_inputs(cells: Sequence[Cell], place: Place) -> None:
    """Refuse cells whose data or weights are missing, before anything is run."""
    listings = {listing.name: listing for listing in describe_datasets(place.data_dir)}
    absent = sorted({cell.dataset for cell in cells if not listings[cell.dataset].found})
    partial = sorted({cell.dataset for cell in cells if listings[cell.dataset].missing} - {*absent})
    if absent or partial:
        said = [f"the data of {', '.join(absent)} was not found"] if absent else []
        said += [f"the data of {name} lacks {', '.join(listings[name].missing)}" for name in partial]
        raise InputError(
            f"{'; '.join(said)}. Name the folder that holds it with --data-dir, or leave these out with --datasets."
        )
    for cell in cells:
        network = cell.plan().network
        if (network.backbone or takes_photographs(network.encoder)) and place.weights is None:
            raise InputError(
                f"{cell.dataset} needs the weights of a pretrained GoogLeNet. Name their file with --weights, or leave "
                f"{cell.dataset} out with --datasets."
            )
    if place.weights is not None:
        check_input(place.weights, "a file with the weights of GoogLeNet")


def default_workers(device: str) -> int:
    """Processes side by side: a few on a GPU, one on a CPU."""
    from semimetric.training.device import choose_device

    return min(WORKERS_ON_GPU, os.cpu_count() or 1) if choose_device(device).type == "cuda" else 1


def run_missing(grid: Grid, records: Records, place: Place, workers: int, progress: Progress | None = None) -> None:
    """Run what is missing, and keep every result as soon as it is there.

    A cell that fails is noted in ``grid.failed``; the others go on. Cells that ran out of memory or lost their process
    are tried once more, each in a process of its own. Fits that Ctrl-C interrupts continue next time.
    """
    progress = progress or Silent()
    total = len(grid.cells)
    tell = Tally(progress, total, total - len(grid.missing))
    with _processes(workers) as pool:
        _describe_all(pool, grid, place, progress)
        crowded = _run_all(pool, grid.missing, grid, records, place, tell, again=True)
    for number in crowded:
        with _processes(1) as pool:
            _run_all(pool, [number], grid, records, place, tell, again=False)
    grid.missing = [number for number in grid.missing if number not in grid.found]


@contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Spawned processes, which end at once on Ctrl-C."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), leave_with_parent, (os.getpid(),))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    pool.shutdown()


def leave_with_parent(parent: int) -> None:
    """End this process soon after its parent has, even if that was killed; it would hold its GPU memory for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_all(
    pool: ProcessPoolExecutor,
    numbers: Sequence[int],
    grid: Grid,
    records: Records,
    place: Place,
    tell: Tally,
    again: bool,
) -> list[int]:
    """Run cells, and return those that ran out of memory or lost their process, if they may be tried ``again``."""
    crowded = []
    waiting = {pool.submit(run_cell, grid.cells[number], place): number for number in numbers}
    while waiting:
        tell.show(grid.cells[number] for number in waiting.values())
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            number, error = waiting.pop(future), future.exception()
            if error is None:
                records.add(future.result())
                grid.found[number] = future.result()
                tell.done += 1
            elif again and isinstance(error, MemoryError | torch.OutOfMemoryError | BrokenProcessPool):
                crowded.append(number)
            else:
                grid.failed[number] = f"{type(error).__name__}: {error}"
                tell.failed(grid.cells[number], grid.failed[number])
    return crowded


def _describe_all(pool: ProcessPoolExecutor, grid: Grid, place: Place, progress: Progress) -> None:
    """Cache the features of each dataset of photographs first, so that no two cells compute them at once."""
    first: dict[str, Cell] = {}
    for number in grid.missing:
        plan = place.plan(grid.cells[number])
        if plan.network.descriptors and not Path(plan.network.descriptors).exists():
            first.setdefault(plan.network.descriptors, grid.cells[number])
    for cell in first.values():
        progress.stage(f"features of {cell.dataset}")
        pool.submit(describe, cell, place).result()


class Tally:
    """Shows how many cells are done, and one that runs."""

    def __init__(self, progress: Progress, total: int, done: int) -> None:
        self._progress, self._total, self.done = progress, total, done

    def show(self, running: Iterable[Cell]) -> None:
        """Show the count and the first of the cells that are left."""
        first = next(iter(running), None)
        if first is not None:
            self._progress.stage(f"{first.dataset} {first.method} seed {first.seed}", self.done, self._total)

    def failed(self, cell: Cell, reason: str) -> None:
        """Say that a cell failed."""
        self._progress.warn(f"{cell.name()} failed: {reason}")
