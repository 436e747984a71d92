"""The paper's figures from results: convergence, the angle of the loss, maps, and retrieved examples."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semimetric.data import find_photographs, load_dataset
from semimetric.data.photographs.images import decode_image
from semimetric.paper.experiments import Table, is_photographs
from semimetric.paper.published import ANGLES_ON_CARS, COLUMNS
from semimetric.paper.records import Record
from semimetric.paper.tables import Line
from semimetric.reporting.figures import (
    Curve,
    Panel,
    RetrievalRow,
    Shown,
    angle_figure,
    curves_figure,
    maps_figure,
    retrieval_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THUMBNAIL, BLOCKS = 64, 3
"""Pixels of a photograph in the figure of retrieved examples, and queries that fit on a page."""

Found = Mapping[tuple[str, str], Sequence[Record]]
"""The results of a table, by dataset and title of the row; one for each seed."""


def convergence_picture(found: Found) -> Figure:
    """The loss of the triplets and the scores on withheld examples, epoch by epoch."""
    quantities = {
        "triplet_loss": "Mean loss of a triplet",
        "selection_nmi": "Withheld NMI, per cent",
        "selection_recall@1": "Withheld R@1, per cent",
    }
    panels = []
    for name, label in quantities.items():
        curves = [_history(f"{dataset}, {title}", records, name) for (dataset, title), records in found.items()]
        panels.append((label, [curve for curve in curves if curve.x]))
    seeds = max(len(records) for records in found.values())
    over = f"Mean and deviation over {seeds} seeds" if seeds > 1 else "One seed"
    note = f"{over}. The paper shows its curve as a picture, without numbers."
    return curves_figure(panels, "Epoch", note)


def _history(label: str, records: Sequence[Record], name: str) -> Curve:
    """Mean and deviation over seeds of a logged value, as far as all of them go."""
    scale = 100.0 if name.startswith("selection") else 1.0
    histories = [[line for line in record["history"] if name in line] for record in records]
    length = min(map(len, histories))
    rows = [[scale * history[i][name] for history in histories] for i in range(length)]
    epochs = [histories[0][i]["epoch"] for i in range(length)]
    spread = [statistics.stdev(row) for row in rows] if len(records) > 1 else []
    return Curve(label, epochs, [statistics.mean(row) for row in rows], spread)


def angle_picture(lines: Sequence[Line]) -> Figure:
    """Scores by the angle of the loss, beside the paper's."""
    panels = []
    for column, label in (("nmi", "NMI in per cent"), ("recall@1", "Recall@1 in per cent")):
        curves = []
        for dataset in dict.fromkeys(line.dataset for line in lines):
            mine = [line for line in lines if line.dataset == dataset]
            angles = [float(line.title.rstrip("°")) for line in mine]
            spread = [line.deviation[column] or 0.0 for line in mine]
            curves.append(Curve(dataset, angles, [line.mean[column] for line in mine], spread if any(spread) else ()))
        if any(line.dataset == "cars196" for line in lines):
            theirs = [row[COLUMNS.index(column)] for row in ANGLES_ON_CARS.values()]
            curves.append(Curve("cars196", list(ANGLES_ON_CARS), theirs, paper=True))
        panels.append((label, curves))
    seeds = {len(line.seeds) for line in lines}
    return angle_figure(panels, f"Test set, seeds behind a point: {', '.join(map(str, sorted(seeds)))}.")


def map_picture(found: Found, table: Table, datasets: Sequence[str]) -> Figure:
    """A row of maps for each dataset: at the start, without and with orthogonality."""
    rows, notes = [], []
    for dataset in datasets:
        records = [(row.title, found[dataset, row.title][0]) for row in table.rows if (dataset, row.title) in found]
        if not records:
            continue
        maps = [(title, record["kept"]["map"]) for title, record in records]
        rows.append([Panel(f"{dataset}: {title}", np.array(m["points"]), np.array(m["labels"])) for title, m in maps])
        notes.append(f"{dataset}: {len(maps[0][1]['rows']):,} test examples")
        seed = records[0][1]["seed"]
    names = [str(number) for number in range(10)]
    return maps_figure(rows, names, f"t-SNE, perplexity 30. {'; '.join(notes)}; seed {seed}.")


def retrieval_picture(found: Found, dataset: str, data_dir: Path | None, with_images: bool = True) -> Figure:
    """The nearest test examples of a few queries, method by method; without images their classes are named."""
    kept = {title: records[0]["kept"]["neighbors"] for (name, title), records in found.items() if name == dataset}
    wanted = [entry for each in kept.values() for found in (each["queries"], *each["hits"]) for entry in found]
    images = _images(dataset, {entry["row"] for entry in wanted}, data_dir) if with_images else {}
    queries = next(iter(kept.values()))["queries"][:BLOCKS]
    blocks = []
    for number, query in enumerate(queries):
        asked = Shown(images.get(query["row"]), _class_name(query))
        hits = {title: [_hit(entry, query, images) for entry in each["hits"][number]] for title, each in kept.items()}
        blocks.append([RetrievalRow(title, asked, shown) for title, shown in hits.items()])
    seed = next(records[0]["seed"] for (name, _), records in found.items() if name == dataset)
    note = f"{dataset}, seed {seed}. Green and solid: the class of the query. Red and dashed: another class."
    return retrieval_figure(blocks, note)


def _hit(entry: dict[str, Any], query: dict[str, Any], images: Mapping[int, Any]) -> Shown:
    return Shown(images.get(entry["row"]), _class_name(entry), entry["label"] == query["label"])


def _class_name(entry: dict[str, Any]) -> str:
    """The name of a class without its number and underscores."""
    _, _, name = str(entry["name"]).rpartition(".")
    return name.replace("_", " ")


def _images(dataset: str, rows: set[int], data_dir: Path | None) -> dict[int, Any]:
    """Test images (H, W) or (H, W, 3) by row."""
    if is_photographs(dataset):
        found = find_photographs(dataset, data_dir)
        assert found is not None
        paths = found.parts()["test"].paths
        return {row: decode_image(paths[row], THUMBNAIL).permute(1, 2, 0).numpy() for row in rows}
    inputs = load_dataset(dataset, data_dir).test.inputs
    largest = float(inputs.max())
    return {row: (inputs[row].float() / largest).permute(1, 2, 0).squeeze(-1).numpy() for row in rows}
