"""Results of cells on disk: one JSON file for each dataset, a line for each result, rewritten atomically after each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from semimetric.core.errors import RunError
from semimetric.core.files import read_json, write_text

FORMAT = 1
Reuse = Literal["same-code", "any-code", "none"]

Record = dict[str, Any]


class Records:
    """The results in a folder, by key.

    Parameters
    ----------
    folder : path
        Holds a file for each dataset. It is made with the first result.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._by_dataset: dict[str, dict[str, Record]] = {}
        for path in sorted(folder.glob("*.json")):
            self._by_dataset[path.stem] = {record["key"]: record for record in _read(path)}

    def find(self, dataset: str, key: str) -> Record | None:
        """The result of this key."""
        return self._by_dataset.get(dataset, {}).get(key)

    def add(self, record: Record) -> None:
        """Keep a result, in place of an older one of the same key, beside what other processes have added."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{record['dataset']}.json"
        with _locked(self.folder):
            there = {one["key"]: one for one in _read(path)} if path.is_file() else {}
            records = self._by_dataset[record["dataset"]] = there | {record["key"]: record}
            ordered = sorted(records.values(), key=lambda one: (one["command"], one["key"]))
            write_text(path, _text(ordered))

    def all(self) -> Iterable[Record]:
        """Every result."""
        return (record for records in self._by_dataset.values() for record in records.values())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from adding results meanwhile, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _text(records: list[Record]) -> str:
    """JSON with a line for each result: a third of the size of indented JSON, and a change shows as its line."""
    lines = ",\n".join(json.dumps(record, allow_nan=False) for record in records)
    return f'{{"format": {FORMAT}, "records": [\n{lines}\n]}}\n'


def _read(path: Path) -> list[Record]:
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"{path} holds no results of this format ({FORMAT}). Name another --out, or move the file away.")
    records = content.get("records")
    if not isinstance(records, list) or not all(map(_is_record, records)):
        raise RunError(f"{path} is damaged: it holds no list of results. Name another --out, or move the file away.")
    return records


def _is_record(value: Any) -> bool:
    kinds = {"key": str, "command": str, "code": str, "plan": dict, "history": list, "kept": dict, "seed": int}
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def rounded(value: Any) -> Any:
    """The same value with five significant digits, more than any measurement here has."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list | tuple) else value
