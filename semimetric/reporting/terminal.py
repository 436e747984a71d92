"""A terminal that shows foreign text as it is: neither escape sequences nor markup in it take effect."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

KEPT = "\n\t"
"""Control characters that a text of several lines may have."""

DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the direction of writing."""


def visible(text: str, kept: str = "") -> str:
    r"""The text with its control characters, and those that change the direction of writing, written as \x1b."""
    if text.isprintable():
        return text
    return "".join(_shown(character) if character not in kept else character for character in text)


def _shown(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in DIRECTIONS:
        return character.encode("unicode_escape").decode("ascii")
    return character


class PlainConsole(Console):
    """A console without markup, highlighting and emoji, whose texts cannot steer the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "highlight": False, "emoji": False} | options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Segments as they go to the terminal; rich's own control codes are segments of their own."""
        return super()._render_buffer(
            segment if segment.control else Segment(visible(segment.text, KEPT), segment.style) for segment in buffer
        )


def marked(mark: str, style: str, sentence: str) -> Text:
    """A sentence in one line after a coloured mark, such as "error:"."""
    return Text.assemble((mark, style), " ", visible(sentence))
