"""``semimetric report`` and ``compare``: HTML files that open without a network, and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from semimetric.cli.console import AsJson, DataDir, RunFolder, Source, print_json, say, showing_progress
from semimetric.cli.runs import IdColumn, LabelColumn, LabelFile
from semimetric.core.errors import InputError
from semimetric.core.files import check_outputs

Sample = Annotated[int, typer.Option(min=10, max=20000, help="Examples on the map, at most; drawn by predicted class.")]
Placed = Annotated[
    Literal["auto", "tsne", "umap"],
    typer.Option("--map", help="How they are placed; auto is UMAP where it is installed (extra umap), else t-SNE."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace earlier files in --out.")]


def report(
    run: RunFolder,
    data: Annotated[
        Path | None,
        typer.Argument(help="Labelled examples that the run was not trained on, to judge it by.", show_default=False),
    ] = None,
    labels: LabelFile = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the files; RUN-report unless given.")
    ] = None,
    replace: Replace = False,
    sample: Sample = 2000,
    way: Placed = "auto",
    data_dir: DataDir = None,
    source: Source = None,
    as_json: AsJson = False,
) -> None:
    """Write a report of a run: report.html, which opens without a network, and figures as PNG and SVG."""
    if data is None and (labels or label_column or id_column):
        raise InputError("--labels, --label-column and --id-column need DATA. Name labelled examples.")
    folder = _folder(out or run.resolve().with_name(f"{run.resolve().name}-report"), "report.html", [run], replace)
    _check_figures("a report")
    from semimetric.reporting.facts import Labelled, read_facts
    from semimetric.reporting.report import write_report

    judged_by = None if data is None else Labelled(data, labels, label_column, id_column)
    with showing_progress() as progress:
        facts = read_facts(run, judged_by, data_dir, source, progress)
        progress.stage("drawing the report")
        folder.mkdir(exist_ok=True)
        files = write_report(facts, folder, sample, way)
    _tell(files, as_json)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files.")] = Path("comparison"),
    replace: Replace = False,
    data_dir: DataDir = None,
    source: Source = None,
    as_json: AsJson = False,
) -> None:
    """Set runs side by side: scores, settings that differ, curves, and what each finds for the same queries."""
    from semimetric.training.run import Run

    for run in runs:
        Run.open(run)
    if len({run.resolve() for run in runs}) < 2:
        raise InputError("a comparison needs two runs or more. Name another run folder.")
    folder = _folder(out, "compare.html", runs, replace)
    _check_figures("a comparison")
    from semimetric.reporting.compare import write_comparison
    from semimetric.reporting.facts import read_facts

    with showing_progress() as progress:
        progress.stage("drawing the comparison")
        found = [read_facts(run, data_dir=data_dir, source=source) for run in runs]
        folder.mkdir(exist_ok=True)
        files = write_comparison(found, folder)
    _tell(files, as_json)


def _check_figures(user: str) -> None:
    from semimetric.core.extras import import_extra

    import_extra("matplotlib", "figures", user)


FIGURES = {"compare.html": ["curves"]}
FIGURES["report.html"] = ["calibration", "confidence", "confusion", "curves", "map", "retrieval", "spectrum"]
"""The pages, and the figures that they may have."""


def _folder(folder: Path, name: str, runs: list[Path], replace: bool) -> Path:
    """The folder for a page and its figures; one that is a run, or that holds such a file already, is refused."""
    if any(folder.resolve() == run.resolve() for run in runs):
        raise InputError(f"--out {str(folder)!r} is the run itself, which is not changed. Name another folder.")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {str(folder)!r} is a file. Name a folder.")
    if folder.suffix.lower() == ".html" and not folder.exists():
        raise InputError(f"--out {str(folder)!r} must be a folder; {name} is written into it. Name a folder.")
    figures = [f"figures/{figure}.{ending}" for figure in FIGURES[name] for ending in ("png", "svg")]
    check_outputs(folder, [name, *figures], replace)
    return folder


def _tell(files: list[Path], as_json: bool) -> None:
    if as_json:
        print_json({"report": str(files[0]), "figures": [str(path) for path in files[1:]]})
    else:
        say(f"{files[0]} opens in any browser; {len(files) - 1} figures beside it")
