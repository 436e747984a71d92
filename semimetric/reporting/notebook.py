"""A small map of a fitted model for notebooks, as SVG, without matplotlib."""

from __future__ import annotations

import html

import torch

from semimetric.model.fitted import FittedModel
from semimetric.reporting.canvas import CLASS_COLORS
from semimetric.serve.maps import sample_map

POINTS, WIDTH, LEGEND = 400, 300, 10
"""Examples on the map, its pixels, and the classes that the legend names."""


def small_map(fitted: FittedModel) -> str:
    """The examples on a plane, coloured by predicted class; labelled ones are larger.

    Parameters
    ----------
    fitted : the model with its training examples
    """
    found, names = fitted.posteriors, [str(name) for name in fitted.examples.classes]
    best = found.shares.argmax(1) if len(found.classes) else torch.zeros(len(fitted.labels), dtype=torch.int64)
    made = sample_map(fitted.embeddings, best, POINTS)
    marks = []
    for row, (x, y) in zip(made.rows.tolist(), made.points.tolist(), strict=True):
        place = f'cx="{WIDTH * (x + 1) / 2:.1f}" cy="{WIDTH * (1 - y) / 2:.1f}"'
        radius = 4 if fitted.labels[row] >= 0 else 2
        marks.append(f'<circle {place} r="{radius}" fill="{CLASS_COLORS[int(best[row]) % len(CLASS_COLORS)]}"/>')
    listed = [
        f'<span style="color:{CLASS_COLORS[place % len(CLASS_COLORS)]}">●</span> {html.escape(names[number])}'
        for place, number in enumerate(found.classes.tolist()[:LEGEND])
        if number < len(names)
    ]
    more = f" and {len(found.classes) - LEGEND} more" if len(found.classes) > LEGEND else ""
    return (
        f'<div style="font:13px sans-serif;background:#fff;color:#222;display:inline-block;padding:8px">'
        f'<svg width="{WIDTH}" height="{WIDTH}" role="img" aria-label="Map of the embedding">{"".join(marks)}</svg>'
        f"<div>{' '.join(listed)}{more}</div><div>{html.escape(made.made)}; colour: predicted class</div></div>"
    )
