"""Pieces of a self-contained HTML page: texts, tables, inlined figures, and one sheet with all small pictures."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from semimetric.reporting.canvas import styled
from semimetric.reporting.terminal import visible
from semimetric.serve.pictures import Pictures, jpeg_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TILES = {700: 112, 20_000: 56}
"""Pixels of the side of a small picture, by the largest number of them; more have 40."""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def text(value: object) -> str:
    """A value as HTML text; control characters are written out, and no line breaks before the sign of per cent."""
    return html.escape(visible(str(value))).replace(" %", "&nbsp;%")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table of texts; columns of numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = [[row[place] for row in cells if place < len(row)] for place in range(len(headings))]
    marks = ["", *(' class="number"' if _are_numbers(column) else "" for column in columns[1:])]
    head = "".join(f'<th scope="col"{mark}>{text(name)}</th>' for name, mark in zip(headings, marks, strict=True))
    lines = "".join(
        f'<tr><th scope="row">{text(first)}</th>'
        + "".join(f"<td{mark}>{text(cell)}</td>" for cell, mark in zip(rest, marks[1:], strict=False))
        + "</tr>"
        for first, *rest in cells
    )
    about = f"<caption>{text(caption)}</caption>" if caption else ""
    body = f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="wide" tabindex="0"><table>{about}{body}</table></div>'  # the keyboard scrolls it, too


def _are_numbers(cells: Iterable[str]) -> bool:
    """Whether all texts of a column are numbers, shares in per cent, or empty."""
    return all(re.fullmatch(r"|-?[\d,.]+( %)?", cell) for cell in cells)


def section(name: str, title: str, *parts: str) -> str:
    """A section with a heading that the navigation leads to."""
    return f'<section id="{name}"><h2>{text(title)}</h2>{"".join(parts)}</section>'


def paragraph(sentence: str) -> str:
    """A paragraph of text."""
    return f"<p>{text(sentence)}</p>"


def inlined(figure: Figure, description: str) -> str:
    """A figure as SVG inside of the page; black, white and grey follow the theme."""
    buffer = io.StringIO()
    with styled():
        from matplotlib import rc_context

        with rc_context({"svg.fonttype": "none"}):
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    for ink, role in (("#000000", "currentColor"), ("#555555", "var(--soft)"), ("#e3e3e3", "var(--line)")):
        drawn = drawn.replace(ink, role)
    drawn = re.sub(r"(<text[^>]*style=\")(?![^\"]*fill)", r"\1fill: currentColor; ", drawn)
    return f'<figure role="img" aria-label="{text(description)}">{drawn}</figure>'


class Sheet:
    """Small pictures of some examples in one image; ``tile`` is the HTML of one of them."""

    def __init__(self, pictures: Pictures, names: Sequence[str]) -> None:
        self._pictures, self._names = pictures, names
        self._places: dict[int, int] = {}

    def place(self, row: int) -> int:
        """The number of an example in the sheet."""
        return self._places.setdefault(row, len(self._places))

    def tile(self, row: int, caption: str = "", kind: str = "") -> str:
        """A small picture with its name, or the values of a row of a table."""
        name = text(self._names[row])
        if self._pictures.has_images:
            shown = f'<span class="tile" data-tile="{self.place(row)}" role="img" aria-label="{name}"></span>'
        else:
            values = self._pictures.values(row)[:4]
            lines = "<br>".join(f"{text(column)} {number:.4g}" for column, number in values) or name
            shown = f'<span class="values">{lines}</span>'
        about = f"<small>{text(caption).replace('_', '_<wbr>')}</small>" if caption else ""
        return f'<span class="example {kind}" title="{name}">{shown}{about}</span>'

    def as_dict(self) -> dict[str, Any]:
        """The sheet for the script: a data URL, the side of a tile and the tiles in a row."""
        from PIL import Image

        side = next((side for most, side in TILES.items() if len(self._places) <= most), 40)
        if not self._places or not self._pictures.has_images:
            return {"url": "", "side": side, "across": 1}
        across = math.ceil(math.sqrt(len(self._places)))
        down = math.ceil(len(self._places) / across)
        sheet = Image.new("RGB", (across * side, down * side), (128, 128, 128))
        for row, place in self._places.items():
            tile = self._pictures.tile(row, side)
            if tile is not None:
                sheet.paste(tile, (place % across * side, place // across * side))
        encoded = base64.b64encode(jpeg_of(sheet, 80)).decode()
        return {"url": f"data:image/jpeg;base64,{encoded}", "side": side, "across": across}


def document(title: str, sections: Mapping[str, str], body: Sequence[str], data: Mapping[str, Any]) -> str:
    """The whole page, with style, script and data inside; it asks for nothing else.

    Parameters
    ----------
    title : of the page
    sections : titles of the sections by their names, for the navigation
    body : HTML of the header and the sections
    data : what the script shows
    """
    links = "".join(f'<a href="#{name}">{text(shown)}</a>' for name, shown in sections.items())
    inside = json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{text(title)}</title><link rel="icon" href="data:,"><style>{_asset("report.css")}</style></head><body>'
        f'<header><div><p class="kind">semimetric</p><h1>{text(title)}</h1></div>'
        '<button type="button" id="theme">Dark or light</button></header>'
        f'<nav aria-label="Sections">{links}</nav><main>{"".join(body)}</main>'
        f'<div id="hover" hidden></div><script type="application/json" id="data">{inside}</script>'
        f"<script>{_asset('report.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return (files("semimetric.reporting") / "assets" / name).read_text(encoding="utf-8")
