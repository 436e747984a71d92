"""Tables of results beside the paper's: mean and deviation over seeds, as Markdown, LaTeX and JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semimetric.paper.experiments import PHOTOGRAPHS, Row, Table
from semimetric.paper.published import COLUMNS, published_row
from semimetric.paper.records import Record, rounded
from semimetric.paper.runner import Grid

HEADINGS = ("NMI", "R@1", "R@2", "R@4", "R@8")
LARGE = 2.0
"""Points of difference from the paper that need an explanation."""


@dataclass(frozen=True)
class Line:
    """A row of a table on a dataset; all figures are in per cent.

    Parameters
    ----------
    title, protocol, trains : of the row; ``trains`` is "" where there is only one possibility
    seeds : of the fits behind it
    mean, deviation : by column; the deviation of a single seed is None
    published : the paper's figures, None where it has none
    epoch, epochs : mean of the chosen epoch, and of the epochs that were run
    minutes : mean of a fit, with others beside it
    device, code : what the fits ran on, and the versions of the code that they ran
    commands : one for each seed
    """

    dataset: str
    title: str
    protocol: str
    trains: str
    seeds: tuple[int, ...]
    mean: Mapping[str, float]
    deviation: Mapping[str, float | None]
    published: Sequence[float | None] | None
    epoch: float
    epochs: float
    minutes: float
    device: str
    code: tuple[str, ...]
    commands: tuple[str, ...]

    def cells(self) -> list[str]:
        """The figures as texts, such as 48.7 ± 1.5."""
        return [_with_spread(self.mean.get(name), self.deviation.get(name)) for name in COLUMNS]

    def difference(self, column: str) -> float | None:
        """Points above the paper's figure."""
        theirs = self.published[COLUMNS.index(column)] if self.published else None
        return None if theirs is None or column not in self.mean else self.mean[column] - theirs


def _with_spread(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def line_of(row: Row, dataset: str, records: Sequence[Record]) -> Line:
    """The line of some fits of a row that differ in their seed alone."""
    scores = [_scores(record) for record in records]
    names = [name for name in COLUMNS if all(name in score for score in scores)]
    values = {name: [100 * score[name] for score in scores] for name in names}
    several = len(records) > 1
    return Line(
        dataset,
        row.title,
        row.protocol,
        row.trains or ("frozen features" if dataset in PHOTOGRAPHS else ""),
        tuple(record["seed"] for record in records),
        {name: statistics.mean(found) for name, found in values.items()},
        {name: statistics.stdev(found) if several else None for name, found in values.items()},
        published_row(dataset, row.published) if row.published else None,
        statistics.mean(record["best_epoch"] for record in records),
        statistics.mean(record["epochs"] for record in records),
        statistics.mean(record["wall"] for record in records) / 60,
        ", ".join(sorted({record["hardware"]["device"] for record in records})),
        tuple(sorted({record["code"] for record in records})),
        tuple(record["command"] for record in records),
    )


def _scores(record: Record) -> dict[str, float]:
    """Test scores; of a fit that is not scored those of its best epoch on withheld data."""
    if "final" in record:
        return dict(record["final"])
    best = record["history"][record["best_epoch"]]
    return {name: best[f"selection_{name}"] for name in COLUMNS if f"selection_{name}" in best}


def lines_of(table: Table, grid: Grid, datasets: Sequence[str], seeds: Sequence[int], quick: bool) -> list[Line]:
    """The lines of a table for which there are results."""
    lines = []
    for dataset in datasets:
        for row in table.rows:
            found = [grid.record(cell) for cell in table.cells(row, dataset, seeds, quick)]
            records = [record for record in found if record is not None]
            if records:
                lines.append(line_of(row, dataset, records))
    return lines


def correlations(lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """Spearman's rank correlation of the methods' order with the paper's, by dataset, protocol of the paper.

    Initial is no method. Of several lines that answer to one of the paper's the first counts. Fewer than three methods
    have no order worth a number.
    """
    from scipy.stats import spearmanr

    found: dict[str, dict[str, Any]] = {}
    for dataset in dict.fromkeys(line.dataset for line in lines):
        first: dict[Any, Line] = {}
        for line in lines:
            if line.dataset == dataset and line.published and _has_rank(line):
                first.setdefault(tuple(line.published), line)
        for column in ("nmi", "recall@1"):
            place = COLUMNS.index(column)
            pairs = [(line.mean[column], published[place]) for published, line in first.items()]
            if len(pairs) > 2 and all(theirs is not None for _, theirs in pairs):
                ours, theirs = zip(*pairs, strict=True)
                if len({*ours}) == 1 or len({*theirs}) == 1:
                    continue  # there is no order
                rank = float(spearmanr(ours, theirs).statistic)
                found.setdefault(dataset, {"methods": len(pairs)})[column] = rank
    return found


def _has_rank(line: Line) -> bool:
    return line.protocol == "paper" and line.title != "Initial" and not line.title.endswith("end to end")


def large_differences(lines: Sequence[Line]) -> list[tuple[Line, str, float]]:
    """Lines of the paper's protocol that differ from the paper by more than two points of NMI or Recall@1."""
    found = []
    for line in lines:
        for column in ("nmi", "recall@1"):
            difference = line.difference(column)
            if line.protocol == "paper" and difference is not None and abs(difference) > LARGE:
                found.append((line, column, difference))
    return found


def as_json(table: Table, lines: Sequence[Line]) -> dict[str, Any]:
    """The table as JSON values."""
    value: dict[str, Any] = rounded(
        {
            "name": table.name,
            "title": table.title,
            "lines": [dataclasses.asdict(line) for line in lines],
            "correlations": correlations(lines),
        }
    )
    return value


def as_markdown(lines: Sequence[Line]) -> str:
    """A table for each dataset; the paper's figures stand below ours."""
    return "\n".join(_markdown_of(dataset, lines) for dataset in dict.fromkeys(line.dataset for line in lines))


def _markdown_of(dataset: str, lines: Sequence[Line]) -> str:
    mine = [line for line in lines if line.dataset == dataset]
    has_protocols = len({(line.protocol, line.trains) for line in mine}) > 1
    extra = ["how"] if has_protocols else []
    rows = [[dataset, *extra, *HEADINGS, "seeds", "epoch"]]
    rows.append(["---"] * len(rows[0]))
    for line in mine:
        said = [_manner(line)] if has_protocols else []
        rows.append([line.title, *said, *line.cells(), str(len(line.seeds)), _epoch(line)])
        if line.published:
            theirs = ["–" if value is None else f"*{value:.1f}*" for value in line.published]
            rows.append(["*paper*", *([""] * len(said)), *theirs, "", ""])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _manner(line: Line) -> str:
    """Whose protocol a line follows, and what it trains."""
    return ", ".join(filter(None, ({"paper": "paper's protocol", "ours": "our protocol"}[line.protocol], line.trains)))


def _epoch(line: Line) -> str:
    """The mean epoch that was chosen, of those that were run."""
    return f"{line.epoch:.0f} of {line.epochs:.0f}" if line.epochs else ""


def as_latex(lines: Sequence[Line], title: str) -> str:
    r"""A ``tabular`` in a ``table``; it needs the package booktabs."""
    body = []
    for dataset in dict.fromkeys(line.dataset for line in lines):
        body.append(rf"\midrule \multicolumn{{6}}{{l}}{{{_tex(dataset)}}} \\ \midrule")
        for line in lines:
            if line.dataset != dataset:
                continue
            body.append(" & ".join(map(_tex, [f"{line.title} ({_manner(line)})", *line.cells()])) + r" \\")
            if line.published:
                theirs = ["--" if value is None else f"{value:.1f}" for value in line.published]
                body.append(" & ".join([r"\quad paper", *theirs]) + r" \\")
    head = " & ".join(["Method", *HEADINGS]) + r" \\"
    rows = [r"\begin{table}", r"\centering", r"\begin{tabular}{lrrrrr}", r"\toprule", head, *body, r"\bottomrule"]
    return "\n".join([*rows, r"\end{tabular}", rf"\caption{{{_tex(title)}}}", r"\end{table}"]) + "\n"


TEX = str.maketrans(
    {
        **{special: f"\\{special}" for special in "%_&#${}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "°": r"$^\circ$",
        "–": "--",
    }
)


def _tex(text: str) -> str:
    return text.translate(TEX)
