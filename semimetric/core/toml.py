"""Settings as a TOML file: written for people, and read back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semimetric.core.errors import InputError
from semimetric.core.files import check_input


def as_toml(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Flat TOML text, with the name of each group as a comment above its settings."""
    parts = []
    for title, values in groups.items():
        lines = [f"# {title}", *(f"{name} = {_literal(value)}" for name, value in values.items())]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _literal(value: bool | float | str) -> str:
    """A value of TOML; its strings are written as JSON's, its numbers as Python's."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | str) else repr(value)


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file; the error for one that cannot be read names it."""
    check_input(path, "a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}. Name a TOML file.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no TOML file: {error}. Write one with 'fit ... --show-settings'.") from error
