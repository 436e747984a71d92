"""The run folder: all files of a training run, written atomically and without code.

config.json             settings, and the SHA-256 of pretrained weights
initial.json            test scores before training
metrics.jsonl           one line per epoch
model.safetensors       the best encoder and metric so far
preprocess.safetensors  preprocessing of inputs
checkpoint.safetensors  everything needed to resume
result.json             final results
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import RunError
from semimetric.core.files import clear_leftovers, read_json, read_tensors, write_json, write_tensors, write_text
from semimetric.core.settings import differences

if TYPE_CHECKING:
    from torch import Tensor


class Run:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> Run:
        """Create the folder and write its config; a folder that is not empty is refused."""
        cls.check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "config.json", config)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error}. Choose another --out.") from error
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a folder that is not empty, except for a partial config of a killed process."""
        clear_leftovers(path, "config.json")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if (path / "config.json").exists():
                raise RunError(f"{path} already holds a run. Choose another --out, or continue it with --resume.")
            raise RunError(f"{path} is not an empty folder. Choose another --out.")

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open an existing run."""
        if not (path / "config.json").is_file():
            raise RunError(f"{path} is not a run: it has no config.json. Name the folder given as --out to 'fit'.")
        return cls(path)

    @classmethod
    def resume(cls, path: Path, config: dict[str, Any]) -> Run:
        """Open an existing run with exactly these settings, or create one if there is none."""
        if not (path / "config.json").is_file():
            return cls.create(path, config)
        run = cls.open(path)
        clear_leftovers(path)
        run._check_whole()
        differing = differences(_settings(run.config()), _settings(config))
        if differing:
            raise RunError(
                f"{path} was started with other settings: {'; '.join(differing)}. "
                "Resume with the same settings, or choose another --out."
            )
        return run

    def config(self) -> dict[str, Any]:
        """The settings of the run."""
        loaded = read_json(self.path / "config.json")
        if not isinstance(loaded, dict):
            raise RunError(f"{self.path / 'config.json'} is damaged: it holds no settings. Choose another --out.")
        return loaded

    def write(self, name: str, value: object) -> None:
        """Write a JSON file of the run."""
        with self._guarded(name):
            write_json(self.path / name, value)

    def read(self, name: str) -> Any | None:
        """Read a JSON file of the run; None if it does not exist."""
        return read_json(self.path / name) if (self.path / name).exists() else None

    def write_tensors(self, name: str, tensors: dict[str, Tensor], state: object = None) -> None:
        """Write a tensor file of the run; on failure the previous file is kept and an error is raised."""
        with self._guarded(name):
            write_tensors(self.path / name, tensors, state)

    def read_tensors(self, name: str) -> tuple[dict[str, Tensor], Any]:
        """Read a tensor file of the run."""
        if not self.has(name):
            raise RunError(f"{self.path} holds no {name}: the run is incomplete. Start again with another --out.")
        return read_tensors(self.path / name)

    def has(self, name: str) -> bool:
        """Whether the run has this file."""
        return (self.path / name).is_file()

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        with self._guarded("metrics.jsonl"), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def history(self) -> list[dict[str, Any]]:
        """Records of ``metrics.jsonl``, without a last line that a crash truncated."""
        path = self.path / "metrics.jsonl"
        records = []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict):
                break
            records.append(record)
        return records

    def forget_after(self, epoch: int) -> None:
        """Delete log lines later than ``epoch``; they will be written again."""
        kept = [json.dumps(record) + "\n" for record in self.history() if record.get("epoch", epoch + 1) <= epoch]
        with self._guarded("metrics.jsonl"):
            write_text(self.path / "metrics.jsonl", "".join(kept))

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
    """A config without library versions, which may change during a run."""
    return {name: value for name, value in config.items() if name != "versions"}
