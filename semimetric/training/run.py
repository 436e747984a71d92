"""The run folder: all files of a training run, written atomically and without code.

config.json             settings, and the SHA-256 of pretrained weights
initial.json            test scores before training
metrics.jsonl           one line per epoch
model.safetensors       the best encoder and metric so far
preprocess.safetensors  preprocessing of inputs
checkpoint.safetensors  everything needed to resume
result.json             final results
manifest.json           size and SHA-256 of all of these, by which each is checked when it is read

Every file is written by ``write``, ``write_tensors`` or ``log``, which keep the manifest; ``seal`` comes last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import RunError
from semimetric.core.files import clear_leftovers, json_text, parse_json, read_json, read_tensors, tensor_pieces
from semimetric.core.locks import Lock
from semimetric.core.manifest import NAME as MANIFEST
from semimetric.core.manifest import Manifest, entry_of, is_free
from semimetric.core.settings import differences

if TYPE_CHECKING:
    from torch import Tensor


CONTINUED = ("checkpoint.safetensors", "model.safetensors", "initial.json", "metrics.jsonl")
"""Files that training continues from: damaged ones are never made whole by --resume. It writes all others again."""

REQUIRED = ("model.json", "model.safetensors", "preprocess.safetensors", "examples.safetensors", "examples.json")
"""Files required to load a model: every finished run has them."""

OWN = {"config.json", "result.json", "schema.json", "schema.safetensors", "origin.json", "backbone.safetensors"}
OWN |= {"inputs.safetensors", "added.safetensors", *REQUIRED, *CONTINUED}
"""Files of a run that are always listed."""


class Run:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest(path)
        self.lock = Lock(path)

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> Run:
        """Create the folder and write its config; a folder that is not empty is refused."""
        cls.check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / MANIFEST).unlink(missing_ok=True)  # of a process that was killed before it wrote the config
            run = cls(path)
            run.manifest.put("config.json", json_text(config).encode())
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error}. Choose another --out.") from error
        return run

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a folder that is not empty, except for what a process left that was killed before the config."""
        clear_leftovers(path)
        if not is_free(path):
            if (path / "config.json").exists():
                raise RunError(f"{path} already holds a run. Choose another --out, or continue it with --resume.")
            raise RunError(f"{path} is not an empty folder. Choose another --out.")
        above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            why = "you may not write to it" if above.is_dir() else "it is a file"
            raise RunError(f"{path} cannot be written in {above}: {why}. Choose another --out.")

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open an existing run."""
        if not path.exists():
            raise RunError(f"there is no folder {path}. Name the folder given as --out to 'fit'.")
        if not (path / "config.json").is_file():
            raise RunError(f"{path} is not a run: it has no config.json. Name the folder given as --out to 'fit'.")
        return cls(path)

    @classmethod
    def resume(cls, path: Path, config: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> Run:
        """Open an existing run with exactly these settings, or create one if there is none.

        Settings that are newer than the run must have their ``defaults``, which are nested as the config is.
        """
        if not (path / "config.json").is_file():
            return cls.create(path, config)
        run = cls.open(path)
        run._check_whole()
        differing = differences(_settings(run.config()), _settings(config), defaults)
        if differing:
            raise RunError(
                f"{path} was started with other settings: {'; '.join(differing)}. "
                "Resume with the same settings, or choose another --out."
            )
        clear_leftovers(path)
        return run

    def config(self) -> dict[str, Any]:
        """The settings of the run."""
        self.manifest.check("config.json")
        loaded = read_json(self.path / "config.json")
        if not isinstance(loaded, dict):
            raise RunError(f"{self.path / 'config.json'} is damaged: it holds no settings. Choose another --out.")
        return loaded

    def write(self, name: str, value: object) -> None:
        """Write a JSON file of the run."""
        with self._guarded(name):
            self.manifest.put(name, json_text(value).encode())

    def read(self, name: str) -> Any | None:
        """Read a JSON file of the run; None if it was never written."""
        if not self.has(name) and not self.manifest.lost(name):
            return None
        self.manifest.check(name)
        return read_json(self.path / name)

    def write_tensors(self, name: str, tensors: dict[str, Tensor], state: object = None) -> None:
        """Write a tensor file of the run; on failure the previous file is kept and an error is raised."""
        pieces = tensor_pieces(tensors, state)
        with self._guarded(name):
            self.manifest.put(name, *pieces)

    def read_tensors(self, name: str, only: tuple[str, ...] | None = None) -> tuple[dict[str, Tensor], Any]:
        """Read a tensor file of the run, or ``only`` some of its tensors; it is checked while it is read."""
        if not self.has(name):
            raise RunError(f"{self.path} holds no {name}: the run is incomplete. Start again with another --out.")
        self.manifest.check_ahead([name])
        try:
            return read_tensors(self.path / name, only)
        finally:
            self.manifest.check(name)  # says more than what a damaged file cannot be read for

    def digest(self, name: str) -> str:
        """SHA-256 of a file of the run."""
        return entry_of(self.path / name).sha256

    def is_whole(self, name: str) -> bool:
        """Whether the run has this file as it was written."""
        return self.has(name) and (not self.manifest.exists() or self.manifest.state(name) == "whole")

    def seal(self) -> None:
        """Write the manifest last, when all files are written."""
        with self._guarded(MANIFEST):
            self.manifest.seal()

    def has(self, name: str) -> bool:
        """Whether the run has this file."""
        return (self.path / name).is_file()

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        with self._guarded("metrics.jsonl"):
            self.manifest.append("metrics.jsonl", json.dumps(record).encode() + b"\n")

    def history(self) -> list[dict[str, Any]]:
        """Records of ``metrics.jsonl``, without a last line that a crash truncated; other damage is refused."""
        path = self.path / "metrics.jsonl"
        if not self.has(path.name) and not self.manifest.lost(path.name):
            return []
        self.manifest.check(path.name)
        *lines, _ = path.read_bytes().split(b"\n")
        return [self._record(number, line) for number, line in enumerate(lines, 1)]

    def _record(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = parse_json(line.decode())
        except (ValueError, RecursionError):
            record = None
        if not (isinstance(record, dict) and isinstance(record.get("epoch", 0), int)):
            raise RunError(
                f"{self.path / 'metrics.jsonl'} is damaged in line {number}: it is no record of an epoch. Start again "
                "with another --out."
            )
        return record

    def forget_after(self, epoch: int) -> None:
        """Delete log lines later than ``epoch``; they will be written again."""
        kept = [json.dumps(record) + "\n" for record in self.history() if record.get("epoch", epoch + 1) <= epoch]
        with self._guarded("metrics.jsonl"):
            self.manifest.put("metrics.jsonl", "".join(kept).encode())

    def _check_whole(self) -> None:
        """Refuse to resume a run with missing files, because its result would be unreliable.

        A run killed before its first checkpoint has nothing missing: its log holds at most epoch 0.
        """
        begun = self.has("checkpoint.safetensors") or any(record.get("epoch") != 0 for record in self.history())
        needed = ["checkpoint.safetensors", "model.safetensors", "preprocess.safetensors"]
        needed += ["model.json"] if "plan" in self.config() else []
        needed += ["initial.json"] if self.config().get("kind") == "benchmark" else []
        lost = [name for name in needed if begun and not self.has(name)]
        if lost:
            raise RunError(
                f"{self.path} is damaged: {', '.join(lost)} is missing, so the run cannot be continued. "
                "Start again with another --out."
            )
        for name in CONTINUED:
            if begun and self.has(name):
                self.manifest.check(name)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path / name} cannot be written: {error}. What was saved before is untouched; "
                "make room and continue with --resume."
            ) from error


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """A config without library versions, the number of threads and files left out, which may change during a run."""
    return {name: value for name, value in config.items() if name not in ("versions", "threads", "undecoded")}
