"""Settings are frozen dataclasses; each field carries the sentence that the command line shows for it."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, TypeVar

from semimetric.errors import InputError

S = TypeVar("S")


def setting(default: Any, help: str) -> Any:
    """A dataclass field with a default and a help sentence."""
    return dataclasses.field(default=default, metadata={"help": help})


def build_settings(kind: type[S], values: dict[str, Any], owner: str) -> S:
    """``kind(**values)``; a name that ``kind`` does not have is refused with the names it has."""
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{owner} has no setting {name!r}.{hint} It has: {', '.join(known) or 'none'}.")
    return kind(**values)
