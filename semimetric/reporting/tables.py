"""Tables of scores for a terminal or a page, in per cent, and phrases that several outputs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from semimetric.reporting.terminal import visible

if TYPE_CHECKING:
    from semimetric.model.spec import ModelSpec

Rows = list[list[str]]

COLUMNS = {"nmi": "NMI", "recall@1": "R@1", "recall@2": "R@2", "recall@4": "R@4", "recall@8": "R@8"}

EVALUATED = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "recall@1": "Recall@1",
    "recall@2": "Recall@2",
    "recall@4": "Recall@4",
    "recall@8": "Recall@8",
    "map@r": "MAP@R",
    "nmi": "NMI",
    "calibration_error": "calibration error",
    "unknown_auroc": "AUROC of unknown classes",
}
"""The scores of an evaluation on labelled examples, and what they are called."""

INPUTS = {"vectors": "columns", "images": "pixels"}


def evaluation_table(scores: Mapping[str, Mapping[str, float | None]], spec: ModelSpec) -> tuple[list[str], Rows]:
    """Headings and a row for each score that some judge has: the run, its inputs alone, and logistic regression.

    Parameters
    ----------
    scores : of an ``Evaluation``, by judge
    spec : of the run
    """
    inputs = "frozen features" if spec.backbone else INPUTS.get(spec.kind, "pixels")
    titles = {"run": "run", "inputs": f"{inputs} alone", "logistic": "logistic regression"}
    rows = [[title, *(_percent(scores[judge].get(name)) for judge in scores)] for name, title in EVALUATED.items()]
    return ["per cent", *(titles[judge] for judge in scores)], [row for row in rows if any(row[1:])]


def per_cent(share: float, decimals: int = 0) -> str:
    """A share as every output writes it: 94.3 %."""
    return f"{100 * share:.{decimals}f} %"


def departures(method: str, guards: Sequence[str]) -> str:
    """What a method changed to keep its problem solvable, in words; empty if nothing."""
    if not guards:
        return ""
    names = ", ".join(name.replace("_", " ") for name in guards)
    return f"{method} changed its problem to keep it solvable: {names} (explained in docs/methods/{method}.md)"


def _percent(score: float | None) -> str:
    return "" if score is None else f"{100 * score:.1f}"


def score_table(rows: Mapping[str, Mapping[str, float]], title: str | None = None) -> Table:
    """One row per name; scores (fractions) are shown as percentages with one decimal."""
    table = Table(title=None if title is None else Text(visible(title)), title_justify="left")
    table.add_column("")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for name, scores in rows.items():
        table.add_row(Text(visible(name)), *(f"{100 * scores[key]:.1f}" for key in COLUMNS))
    return table
