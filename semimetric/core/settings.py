"""Settings: frozen dataclasses whose fields carry the help text of their command-line options."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar, get_type_hints

from semimetric.core.errors import InputError

S = TypeVar("S")


def setting(default: Any, help: str) -> Any:
    """A dataclass field with a default and a help text."""
    return dataclasses.field(default=default, metadata={"help": help})


def build_settings(kind: type[S], values: dict[str, Any], owner: str) -> S:
    """``kind(**values)``; an unknown name is refused with a list of the valid ones."""
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{owner} has no setting {name!r}.{hint} It has: {', '.join(known) or 'none'}.")
    hints = get_type_hints(kind)
    return kind(**{name: check_type(value, hints[name], name) for name, value in values.items()})


def check_type(value: Any, hint: Any, name: str) -> Any:
    """``value`` in the type of its field; a whole number is accepted for a float, otherwise types must match."""
    accepted: dict[Any, tuple[type[Any], str]] = {
        int: (Integral, "a whole number"),
        float: (Real, "a number"),
        bool: (bool, "true or false"),
    }
    if hint not in accepted:
        return value
    kind, words = accepted[hint]
    if not isinstance(value, kind) or isinstance(value, bool) != (hint is bool):
        raise InputError(f"{name} must be {words}, got {value!r}.")
    return hint(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """How two nested dictionaries of settings differ, as phrases for a message."""
    found = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {before!r} and is now {after!r}")
    return found
