"""Repeat the paper: run what is missing of some tables and figures, and write them beside the paper's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import InputError, RunError
from semimetric.core.extras import import_extra
from semimetric.core.files import read_json, write_json, write_text
from semimetric.paper.cells import code_version
from semimetric.paper.complexity import Growth, measure_growth
from semimetric.paper.experiments import Table
from semimetric.paper.pictures import Found, angle_picture, convergence_picture, map_picture, retrieval_picture
from semimetric.paper.records import Record, Records, Reuse, rounded
from semimetric.paper.request import COMPLEXITY, Request
from semimetric.paper.runner import Grid, check_inputs, default_workers, grid_of_records, plan_grid, run_missing
from semimetric.paper.tables import Line, as_json, as_latex, as_markdown, correlations, lines_of
from semimetric.paper.work import Place, hardware
from semimetric.reporting.figures import Scaling, scaling_figure, write_figure
from semimetric.training.device import choose_device
from semimetric.training.progress import Progress, Silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Outcome:
    """What was written, and what could not be run."""

    files: list[Path]
    tables: dict[str, list[Line]]
    failed: dict[str, str]
    reused: int
    ran: int


def plan_of(request: Request, place: Place, reuse: Reuse = "same-code") -> Grid:
    """Which fits a request consists of, and which of them have results."""
    cells = request.cells()
    check_inputs(cells, place)
    return plan_grid(cells, Records(place.folder / "records"), place, reuse)


def reproduce(
    request: Request,
    place: Place,
    reuse: Reuse = "same-code",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run what is missing, and write tables and figures into the folder of ``place``."""
    progress = progress or Silent()
    check_place(request, place)
    grid = plan_of(request, place, reuse)
    reused = len(grid.found)
    if grid.missing:
        (place.folder / "records").mkdir(parents=True, exist_ok=True)  # the folder is known again, even after a kill
        workers = workers or default_workers(place.device)
        run_missing(grid, Records(place.folder / "records"), place, workers, progress)
    return write_all(request, place, grid, reused, reuse, progress)


def write_found(request: Request, place: Place, progress: Progress | None = None) -> Outcome:
    """Write tables and figures of the results that are there, whatever code they came from; nothing is run."""
    check_place(request, place)
    grid = grid_of_records(request.cells(), Records(place.folder / "records"))
    return write_all(request, place, grid, len(grid.found), "any-code", progress or Silent(), measures=False)


def check_place(request: Request, place: Place) -> None:
    """Refuse a folder with other files, a device that is not there, and figures without matplotlib, before any fit."""
    folder = place.folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {str(folder)!r} is a file. Name a folder.")
    marks = (folder / "records", folder / f"{COMPLEXITY}.json", folder / f"{COMPLEXITY}-quick.json")
    if folder.is_dir() and any(folder.iterdir()) and not any(mark.exists() for mark in marks):
        raise InputError(f"--out {str(folder)!r} holds other files. Name a new folder, or an empty one.")
    choose_device(place.device)
    if any(name in PICTURES or name == COMPLEXITY for name in request.names()):
        import_extra("matplotlib", "figures", "a figure")


def write_all(
    request: Request, place: Place, grid: Grid, reused: int, reuse: Reuse, progress: Progress, measures: bool = True
) -> Outcome:
    """Write the tables and figures of a grid; with ``measures`` false nothing is timed either."""
    place.folder.mkdir(parents=True, exist_ok=True)
    tables, files = {}, []
    for table in request.tables():
        progress.stage(f"writing {table.name}")
        tables[table.name] = lines_of(table, grid, table.datasets, (), request.quick)
        files += write_table(table, tables[table.name], grid, place, request.quick)
    if COMPLEXITY in request.names():
        files += write_complexity(place, reuse, request.quick, progress, measures)
    failed = {grid.cells[number].name(): reason for number, reason in grid.failed.items()}
    return Outcome(files, tables, failed, reused, len(grid.found) - reused)


def write_table(table: Table, lines: Sequence[Line], grid: Grid, place: Place, quick: bool) -> list[Path]:
    """Markdown, LaTeX, JSON and, where there is one, the figure of a table; nothing where there is no result."""
    if not lines:
        return []
    stem = place.folder / table.name
    write_json(stem.with_suffix(".json"), as_json(table, lines))
    write_text(stem.with_suffix(".tex"), as_latex(lines, table.title))
    written = [stem.with_suffix(".json"), stem.with_suffix(".tex")]
    if table.name in PICTURES:
        found = _found(table, grid, quick)
        written += write_figure(PICTURES[table.name](table, lines, found, place), stem)
    write_text(stem.with_suffix(".md"), _page(table, lines))
    return [*written, stem.with_suffix(".md")]


def _page(table: Table, lines: Sequence[Line]) -> str:
    parts = [f"# {table.title}\n", as_markdown(lines)]
    if table.name in PICTURES:
        parts.append(f"![{table.title}]({table.name}.png)\n")
    for dataset, ranks in correlations(lines).items():
        shown = ", ".join(f"{name} {value:.2f}" for name, value in ranks.items() if name != "methods")
        parts.append(f"Rank correlation of {ranks['methods']} methods with the paper, {dataset}: {shown}.\n")
    commands = "\n".join(f"    {command}" for line in lines for command in line.commands[:1])
    parts.append(f"Each row alone, with its first seed:\n\n{commands}\n")
    return "\n".join(parts)


def _found(table: Table, grid: Grid, quick: bool) -> Found:
    """The results of a table by dataset and row."""
    found: dict[tuple[str, str], list[Record]] = {}
    for dataset in table.datasets:
        for row in table.rows:
            records = [grid.record(cell) for cell in table.cells(row, dataset, (), quick)]
            there = [record for record in records if record is not None]
            if there:
                found[dataset, row.title] = there
    return found


PICTURES: dict[str, Callable[[Table, Sequence[Line], Found, Place], Figure]] = {
    "alpha": lambda table, lines, found, place: angle_picture(lines),
    "convergence": lambda table, lines, found, place: convergence_picture(found),
    "tsne": lambda table, lines, found, place: map_picture(found, table, table.datasets),
    "retrieval": lambda table, lines, found, place: retrieval_picture(
        found, table.datasets[0], place.data_dir, place.photographs
    ),
}
"""How a table is drawn."""


def write_complexity(place: Place, reuse: Reuse, quick: bool, progress: Progress, measures: bool = True) -> list[Path]:
    """Measure how the steps of the method grow, unless it has been measured, and write table and figure."""
    stem = place.folder / (f"{COMPLEXITY}-quick" if quick else COMPLEXITY)
    path = stem.with_suffix(".json")
    known = _measured(path) if reuse != "none" else None
    if known is None or (reuse == "same-code" and known["code"] != code_version()):
        if not measures:
            return []
        grown = measure_growth(quick, progress.stage)
        machine = hardware(dataclasses.replace(place, device="cpu", threads=1))
        known = {"code": code_version(), "hardware": machine, "command": COMMAND + (" --quick" if quick else "")}
        known |= {"growth": [rounded(dataclasses.asdict(entry)) for entry in grown]}
        write_json(path, known)
    growth = [Growth(**entry) for entry in known["growth"]]
    write_text(stem.with_suffix(".md"), complexity_page(growth))
    scalings = [Scaling(g.step, g.variable, g.sizes, g.seconds, g.exponent, g.stated) for g in growth]
    note = "One CPU thread. Dashed: the exponent that the paper states."
    return [path, stem.with_suffix(".md"), *write_figure(scaling_figure(scalings, note), stem)]


def _measured(path: Path) -> dict[str, Any] | None:
    """The measurement in a file, if there is one."""
    if not path.is_file():
        return None
    known = read_json(path)
    names = {field.name for field in dataclasses.fields(Growth)}
    growth = known.get("growth") if isinstance(known, dict) and "code" in known else None
    if not isinstance(growth, list) or not all(isinstance(one, dict) and {*one} == names for one in growth):
        raise RunError(f"{path} is damaged: it holds no measurement. Move it away.")
    found: dict[str, Any] = known
    return found


COMMAND = "semimetric reproduce complexity"


def complexity_page(growth: Sequence[Growth]) -> str:
    """The measured exponents beside the stated ones."""
    rows = ["| step | grows with | measured exponent | stated |", "|---|---|---|---|"]
    rows += [f"| {g.step} | {g.variable} | {g.exponent:.2f} ± {g.error:.2f} | {g.stated_text or '–'} |" for g in growth]
    return "# Complexity\n\n" + "\n".join(rows) + "\n"
