"""The report of a run: one HTML file that needs nothing else, and its figures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.files import write_text
from semimetric.evaluation import measure_spread
from semimetric.reporting.canvas import CLASS_COLORS, write_figure
from semimetric.reporting.facts import RunFacts, settings_of
from semimetric.reporting.html import Sheet, document, inlined, paragraph, section, table, text
from semimetric.reporting.plots import (
    plot_calibration,
    plot_confidence,
    plot_confusion,
    plot_curves,
    plot_map,
    plot_spectrum,
)
from semimetric.reporting.retrieval_grid import RetrievalRow, Shown, retrieval_figure
from semimetric.reporting.tables import COLUMNS, departures, evaluation_table, per_cent
from semimetric.serve.maps import Way, sample_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DARK_COLORS = (
    *("#4AA8E0", "#F0874A", "#2EC79B", "#E39CC3", "#F0B429"),
    *("#8CD3F5", "#FFFFFF", "#D08A63", "#B07CFF", "#FF6B9A"),
)
"""The class colours, light enough for a dark page."""

COLOURS = {"light": list(CLASS_COLORS), "dark": list(DARK_COLORS)}
STATIC_QUERIES, STATIC_HITS = 2, 6
"""Queries of each kind, and hits of each, in the figure."""


class Report:
    """A report under way: its sections, figures and small pictures."""

    def __init__(self, facts: RunFacts, sample: int, way: Way = "auto") -> None:
        self.facts = facts
        self.fitted = facts.loaded.fitted
        self.names = facts.names
        self.sheet = Sheet(facts.pictures, self.names)
        self.figures: dict[str, Figure] = {}
        self.titles: dict[str, str] = {}
        self.body: list[str] = []
        self.map = sample_map(self.fitted.embeddings, facts.predicted, sample, way=way)

    def add(self, name: str, title: str, *parts: str) -> None:
        """Add a section, unless it is empty."""
        if any(parts):
            self.titles[name] = title
            self.body.append(section(name, title, *parts))

    def figure(self, name: str, drawn: Figure, description: str) -> str:
        """Keep a figure for its files, and return it for the page."""
        self.figures[name] = drawn
        return inlined(drawn, description)


def write_report(facts: RunFacts, out: Path, sample: int, way: Way = "auto") -> list[Path]:
    """Write ``report.html`` and the folder ``figures`` into ``out``, and return all files.

    Parameters
    ----------
    facts : of the run
    out : the folder, which must exist
    sample : examples on the map at most
    way : how they are placed
    """
    report = Report(facts, sample, way)
    report.body.append(_cards(facts))
    report.add("scores", "Scores", _scores(facts))
    report.add("map", "Map", _map_section(report))
    if facts.history:
        drawn = plot_curves({facts.name: facts.history})
        report.add("curves", "Training", report.figure("curves", drawn, "Logged values by epoch"))
    report.add("retrieval", "Search", _retrieval(report))
    report.add("confidence", "Confidence and calibration", _confidence(report))
    report.add("confusion", "Confusion", _confusion(report))
    report.add("errors", "Likely label errors", _errors(report))
    report.add("duplicates", "Near-duplicates", _duplicates(report))
    report.add("outliers", "Outliers", _outliers(report))
    report.add("spectrum", "Spectrum", _spectrum(report))
    report.add("settings", "Settings and versions", _settings(facts))
    report.figures["map"] = _static_map(report)
    report.figures["retrieval"] = _static_retrieval(report)
    data = {"map": _map_data(report), "sheet": report.sheet.as_dict(), "colours": COLOURS}
    written = [out / "report.html"]
    write_text(written[0], document(f"Report of {facts.name}", report.titles, report.body, data))
    return written + write_figures(report.figures, out / "figures")


def write_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as PNG and SVG."""
    folder.mkdir(exist_ok=True)
    return [path for name, figure in figures.items() for path in write_figure(figure, folder / name)]


def _cards(facts: RunFacts) -> str:
    """The size of the run in a few large numbers."""
    labels, result = facts.loaded.fitted.labels, facts.result
    cards: list[tuple[object, str]] = [
        (f"{len(labels):,}", "examples"),
        (f"{int((labels >= 0).sum()):,}", "labelled"),
        (len(facts.classes), "classes"),
        (result.get("method", ""), "method"),
        (result.get("epochs", ""), "epochs"),
        (f"{result['seconds']:.0f} s" if "seconds" in result else "", f"on {result.get('device', 'cpu')}"),
    ]
    shown = "".join(f"<li><b>{text(value)}</b><span>{text(name)}</span></li>" for value, name in cards if value != "")
    return f'<ul class="cards">{shown}</ul>'


def score_rows(results: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows in per cent: before training ("Initial") and after, for each run that has test scores."""
    rows = []
    for name, result in results.items():
        for key, title in (("initial", "Initial"), ("final", "Final")):
            if result.get(key):
                label = title if len(results) == 1 else f"{name}: {title}"
                rows.append(
                    [label, *(f"{100 * result[key][column]:.1f}" for column in COLUMNS if column in result[key])]
                )
    return ["Test set, per cent", *COLUMNS.values()], rows


def _scores(facts: RunFacts) -> str:
    headings, rows = score_rows({facts.name: facts.result})
    parts = [table(headings, rows)] if rows else []
    judgement = facts.judgement
    if facts.evaluation is not None:
        headings, rows = evaluation_table(facts.evaluation.scores, facts.loaded.fitted.spec)
        parts += [table(headings, rows)] if rows else []
        parts.append(paragraph(f"Judged by: {judgement.about}" if judgement else ""))
    elif judgement is not None and judgement.accuracy is not None:
        parts.append(paragraph(f"{per_cent(judgement.accuracy, 1)} predicted correctly. Judged by: {judgement.about}"))
    trust = facts.result.get("trust")
    if trust:
        parts.append(paragraph(f"Pseudo-labels after epoch {trust['epoch']}: {trust['sentence']}"))
    changed = departures(facts.result.get("method", ""), facts.result.get("guards", []))
    parts += [paragraph(f"{changed}.")] if changed else []
    return "".join(parts)


def _map_section(report: Report) -> str:
    options = {
        "class": "class",
        "predicted": "predicted class",
        "confidence": "confidence",
        "labelled": "labelled or not",
    }
    if not report.facts.classes:
        options = {"labelled": "labelled or not"}
    elif not bool((report.facts.known[report.map.rows] >= 0).all()):
        options = {"predicted": options["predicted"]} | options  # most have no class that is known
    choices = "".join(f'<option value="{name}">{shown}</option>' for name, shown in options.items())
    missing = paragraph(report.facts.named_only(report.facts.pictures.missing)) if report.facts.pictures.missing else ""
    return (
        f"{paragraph(report.map.made + '. Large marks are labelled.')}{missing}"
        f'<div class="controls"><label>Colour by <select id="map-colour">{choices}</select></label>'
        '<span id="map-count" role="status"></span></div>'
        '<div class="map"><canvas id="map-canvas" tabindex="0" role="img" aria-label="Map of the embedding. '
        'The arrow keys go from example to example."></canvas>'
        '<div class="legend" id="map-legend" role="group" aria-label="Groups; press to hide or show"></div></div>'
    )


def _map_data(report: Report) -> dict[str, Any]:
    """The sampled examples for the script."""
    facts, rows = report.facts, report.map.rows.tolist()
    confidence = report.fitted.posteriors.confidence[report.map.rows]
    values = {} if facts.pictures.has_images else {place: _rounded(facts, row) for place, row in enumerate(rows)}
    return {
        "rows": rows,
        "x": [round(x, 4) for x in report.map.points[:, 0].tolist()],
        "y": [round(y, 4) for y in report.map.points[:, 1].tolist()],
        "names": [report.names[row] for row in rows],
        "classes": list(facts.classes),
        "known": facts.known[report.map.rows].tolist(),
        "predicted": facts.predicted[report.map.rows].tolist(),
        "labelled": (report.fitted.labels[report.map.rows] >= 0).tolist(),
        "confidence": [round(share, 3) for share in confidence.tolist()],
        "tiles": [report.sheet.place(row) for row in rows] if facts.pictures.has_images else [],
        "values": values,
    }


def _rounded(facts: RunFacts, row: int) -> list[tuple[str, str]]:
    return [(name, f"{value:.4g}") for name, value in facts.pictures.values(row)]


def _static_map(report: Report) -> Figure:
    """The map by class; by predicted class where some classes are not known."""
    facts, rows = report.facts, report.map.rows
    known = bool((facts.known[rows] >= 0).all())
    note = f"{report.map.made}. Colours: {'class' if known else 'predicted class'}."
    shown = (facts.known if known else facts.predicted)[rows]
    return plot_map(report.map.points, shown, facts.classes or ("all",), facts.name, note)


def query_row(facts: RunFacts, sheet: Sheet, row: int, hits: Sequence[int]) -> str:
    """A query and its hits; what is known to be right or wrong has a frame."""
    kinds = {None: "", True: "right", False: "wrong"}
    shown = "".join(sheet.tile(hit, facts.label(hit), kinds[facts.same_class(row, hit)]) for hit in hits)
    return f'<div class="row">{sheet.tile(row, facts.label(row))}{shown}</div>'


def _retrieval(report: Report) -> str:
    titles = {"random": "Drawn at random", "best": "Best", "worst": "Worst"}
    told = (
        "The first example of a row is the query; its nearest other training examples follow. Green and solid: the "
        "class of the query. Red and dashed: another class. No frame: class not known; a "
        "predicted one has a question mark."
    )
    parts = [paragraph(told)]
    for kind, title in titles.items():
        rows = "".join(
            query_row(report.facts, report.sheet, q.row, q.hits) for q in report.facts.queries if q.kind == kind
        )
        parts.append(f"<h3>{title}</h3>{rows}" if rows else "")
    return "".join(parts)


def _static_retrieval(report: Report) -> Figure:
    facts = report.facts

    def shown(row: int, right: bool | None = None) -> Shown:
        import numpy as np

        tile = facts.pictures.tile(row, 64)
        name = report.facts.label(row) if tile is not None else f"{report.facts.label(row)} {report.names[row]}"
        return Shown(None if tile is None else np.asarray(tile), name, right)

    blocks = [
        [RetrievalRow(q.kind, shown(q.row), [shown(hit, facts.same_class(q.row, hit)) for hit in q.hits[:STATIC_HITS]])]
        for kind in ("random", "best", "worst")
        for q in [query for query in facts.queries if query.kind == kind][:STATIC_QUERIES]
    ]
    frames = "Green and solid: the class of the query. Red and dashed: another class. No frame: class not known."
    return retrieval_figure(blocks, frames)


def _confidence(report: Report) -> str:
    facts, parts = report.facts, []
    if bool((report.fitted.labels < 0).any()) and facts.classes:
        drawn = plot_confidence(report.fitted.posteriors.confidence, report.fitted.labels)
        parts.append(report.figure("confidence", drawn, "Confidence of the unlabelled examples"))
    judgement = facts.judgement
    if judgement is not None and judgement.accuracy is not None:
        drawn = plot_calibration(*judgement.of_known_classes())
        parts += [
            paragraph(f"Judged by: {judgement.about}"),
            report.figure("calibration", drawn, "Accuracy by probability"),
        ]
    trust = facts.result.get("trust")
    if trust:
        headings = ("Confidence at least", "Share of unlabelled", "Held-out labels", "Right", "95 % interval")
        parts += [paragraph(trust["sentence"]), table(headings, map(_trust_row, trust["levels"]))]
    return "".join(parts)


def _trust_row(level: Mapping[str, Any]) -> list[str]:
    accuracy = "" if level["accuracy"] is None else per_cent(level["accuracy"])
    interval = f"{100 * level['low']:.0f} to {per_cent(level['high'])}" if level["judged"] else ""
    return [f"{level['level']:g}", per_cent(level["coverage"]), str(level["judged"]), accuracy, interval]


def _confusion(report: Report) -> str:
    judgement = report.facts.judgement
    if judgement is None or len(judgement.truth) == 0:
        return ""
    drawn = plot_confusion(judgement.truth, judgement.predicted, judgement.classes)
    return paragraph(f"Judged by: {judgement.about}") + report.figure(
        "confusion", drawn, "True classes by predicted classes"
    )


def _errors(report: Report) -> str:
    errors = report.facts.errors
    if errors is None:
        return paragraph("No class has two labels, so that no label can be checked against the others.")
    if len(errors.rows) == 0:
        return paragraph("No label is contradicted by the others.")
    labels, classes = report.facts.labels, report.facts.classes
    tiles = "".join(
        report.sheet.tile(row, f"{classes[int(labels[row])]}, or {classes[number]}? {per_cent(share)}")
        for row, number, share in zip(*(column.tolist() for column in errors), strict=True)
    )
    about = "Each label is predicted without itself. These are predicted to be of another class, the surest first."
    return f'{paragraph(about)}<div class="row">{tiles}</div>'


def _duplicates(report: Report) -> str:
    pairs = report.facts.duplicates
    if len(pairs.rows) == 0:
        return paragraph("No two examples are nearer than a twentieth of the usual distance to the nearest neighbour.")
    rows = "".join(
        f'<div class="row">{report.sheet.tile(a, report.names[a])}{report.sheet.tile(b, report.names[b])}'
        f"<small>distance {distance:.3g}</small></div>"
        for (a, b), distance in zip(pairs.rows.tolist(), pairs.distances.tolist(), strict=True)
    )
    about = "Pairs that are nearer than a twentieth of the usual distance to the nearest neighbour, the nearest first."
    return paragraph(about) + rows


def _outliers(report: Report) -> str:
    found = report.facts.outliers
    tiles = "".join(
        report.sheet.tile(row, f"{score:.1f} times {report.facts.label(row)}".rstrip())
        for row, score in zip(found.rows.tolist(), found.scores.tolist(), strict=True)
    )
    about = "Farthest from their ten nearest examples, as a multiple of the median example's distance."
    return f'{paragraph(about)}<div class="row">{tiles}</div>'


def _spectrum(report: Report) -> str:
    rank = measure_spread(report.fitted.embeddings).effective_rank
    sentence = f"The embedding uses about {rank:.1f} of its {report.fitted.embeddings.shape[1]} dimensions."
    return paragraph(sentence) + report.figure("spectrum", plot_spectrum(report.fitted.embeddings), sentence)


def _settings(facts: RunFacts) -> str:
    config = facts.loaded.config
    groups = settings_of(config) | {"versions": config["versions"]}
    groups = {name: {key: facts.named_only(value) for key, value in group.items()} for name, group in groups.items()}
    return "".join(
        f"<details{' open' if name in ('run', 'versions') else ''}><summary>{text(name.replace('_', ' '))}</summary>"
        f"{table(('Setting', 'Value'), group.items())}</details>"
        for name, group in groups.items()
        if group
    )
