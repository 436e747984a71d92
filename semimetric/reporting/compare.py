"""Several runs side by side: scores, settings that differ, curves, and the hits of the same queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semimetric.core.files import write_text
from semimetric.reporting.facts import HITS, RunFacts, settings_of
from semimetric.reporting.html import Sheet, document, inlined, paragraph, section, table, text
from semimetric.reporting.plots import plot_curves
from semimetric.reporting.report import query_row, score_rows, write_figures
from semimetric.reporting.tables import per_cent


def write_comparison(runs: Sequence[RunFacts], out: Path) -> list[Path]:
    """Write ``compare.html`` and the folder ``figures`` into ``out``, and return all files.

    Parameters
    ----------
    runs : facts of two runs or more
    out : the folder, which must exist
    """
    titles = _titles(runs)
    first = runs[0]
    sheet = Sheet(first.pictures, first.names)
    parts: dict[str, tuple[str, str]] = {"scores": ("Scores", _scores(runs, titles))}
    parts["settings"] = ("Settings that differ", _settings(runs, titles))
    figures = {}
    if any(run.history for run in runs):
        figures["curves"] = plot_curves({title: run.history for title, run in zip(titles, runs, strict=True)})
        parts["curves"] = ("Training", inlined(figures["curves"], "Logged values by epoch and run"))
    parts["queries"] = ("The same queries", _queries(runs, titles, sheet))
    body = [section(name, title, inside) for name, (title, inside) in parts.items()]
    links = {name: title for name, (title, _) in parts.items()}
    page = document(f"{len(runs)} runs compared", links, body, {"sheet": sheet.as_dict()})
    write_text(out / "compare.html", page)
    return [out / "compare.html", *write_figures(figures, out / "figures")]


def _titles(runs: Sequence[RunFacts]) -> list[str]:
    """The names of the folders; of folders with the same name, their paths."""
    names = [run.name for run in runs]
    paths = [str(run.loaded.path) for run in runs]
    return names if len(set(names)) == len(names) else paths


def _scores(runs: Sequence[RunFacts], titles: Sequence[str]) -> str:
    headings, rows = score_rows({title: run.result for title, run in zip(titles, runs, strict=True)})
    facts = [[title, *_size(run), _judged(run)] for title, run in zip(titles, runs, strict=True)]
    columns = ("Run", "Method", "Examples", "Labelled", "Epochs", "Seconds", "Predicted correctly")
    judged: dict[str, list[str]] = {}
    for title, run in zip(titles, runs, strict=True):
        if run.judgement is not None:
            judged.setdefault(run.judgement.about, []).append(title)
    about = [f"Predicted correctly, {', '.join(names)}: {told}" for told, names in judged.items()]
    return (table(headings, rows) if rows else "") + table(columns, facts) + "".join(map(paragraph, about))


def _size(run: RunFacts) -> list[object]:
    """Method, examples, labels, epochs and seconds of a run."""
    result, labels = run.result, run.loaded.fitted.labels
    counts = [len(labels), int((labels >= 0).sum())]
    return [result.get("method", ""), *counts, result.get("epochs", ""), f"{result.get('seconds', 0):.0f}"]


def _judged(run: RunFacts) -> str:
    accuracy = None if run.judgement is None else run.judgement.accuracy
    return "" if accuracy is None else per_cent(accuracy, 1)


def _settings(runs: Sequence[RunFacts], titles: Sequence[str]) -> str:
    """A row for each setting that is not the same in all runs."""
    each = [_flat(run.loaded.config) for run in runs]
    names = dict.fromkeys(name for settings in each for name in settings)
    differing = [name for name in names if len({str(settings.get(name, "")) for settings in each}) > 1]
    if not differing:
        return paragraph("All settings are the same.")
    rows = [[name, *(settings.get(name, "") for settings in each)] for name in differing]
    return table(("Setting", *titles), rows)


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    groups = settings_of(config) | {"versions": config["versions"]}
    return {f"{group}: {name}": value for group, values in groups.items() for name, value in values.items()}


def _queries(runs: Sequence[RunFacts], titles: Sequence[str], sheet: Sheet) -> str:
    """What each run finds for the queries of the first run's report, among the examples that all have."""
    first = runs[0]
    rows_of = [{name: row for row, name in enumerate(run.names)} for run in runs]
    common = set.intersection(*map(set, rows_of))
    names = first.names
    queries = [query.row for query in first.queries if names[query.row] in common]
    if not queries:
        return paragraph("The runs have no examples in common, so that they cannot be asked the same.")
    parts = [paragraph("The first example of a row is the query. Hits that not all runs have are left out.")]
    for row in dict.fromkeys(queries):
        parts.append(f"<h3>{text(names[row])}</h3>")
        for run, title, rows in zip(runs, titles, rows_of, strict=True):
            hits = (run.names[hit] for hit in run.neighbors[rows[names[row]], :HITS].tolist())
            shown = [rows_of[0][hit] for hit in hits if hit in common]
            parts.append(f"<p>{text(title)}</p>{query_row(first, sheet, row, shown)}")
    return "".join(parts)
