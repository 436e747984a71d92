"""Whether the files of a run are those that were written, and what can be made again of those that are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semimetric.core.errors import RunError
from semimetric.core.locks import NAME as LOCK
from semimetric.core.manifest import NAME, State
from semimetric.training.run import CONTINUED, OWN, REQUIRED, Run


@dataclass(frozen=True)
class Verdict:
    """What was found in a run.

    Attributes
    ----------
    files : state of each listed file
    unlisted : files in the folder that the run did not write
    advice : what to do, as a sentence
    """

    files: dict[str, State]
    unlisted: list[str]
    advice: str

    @property
    def damaged(self) -> list[str]:
        """Files that are not as they were written."""
        return [name for name, state in self.files.items() if state != "whole"]


def verify_run(path: Path) -> Verdict:
    """Check every file of a run against its manifest. Nothing is written."""
    run = Run(path)
    if not run.manifest.exists():
        if not run.has("config.json"):
            raise RunError(f"{path} is not a run: it has neither config.json nor {NAME}. Name the --out of 'fit'.")
        raise RunError(
            f"{path} has no {NAME}: an earlier version wrote it, or the file was lost. Nothing in it can be verified."
        )
    known = run.manifest.contents()
    finished = "result.json" in known.files
    wanted = {*known.files, *(REQUIRED if finished else ()), *filter(run.has, OWN.union(known.pending))}
    files = {name: run.manifest.state(name) for name in sorted(wanted)}
    if finished:
        files |= {name: "interrupted" for name in known.pending if files.get(name, "whole") == "whole"}
    unlisted = sorted(entry.name for entry in path.iterdir() if entry.name not in {*files, NAME, LOCK})
    return Verdict(files, unlisted, _advice(run, files))


def _advice(run: Run, files: dict[str, State]) -> str:
    damaged = [name for name, state in files.items() if state in ("damaged", "missing")]
    if "config.json" in damaged:
        return "Without its config.json nothing of the run can be made again. Restore it from a copy, or fit again."
    if damaged and _kind(run) == "estimator":
        return "Save the estimator again, or restore the files from a copy."
    lost = [name for name in damaged if name in CONTINUED] if run.has("checkpoint.safetensors") else []
    lost += [name for name in ("checkpoint.safetensors",) if name in damaged and name not in lost]
    again = [name for name in damaged if name not in lost]
    told = []
    if begun := [name for name, state in files.items() if state == "interrupted"]:
        told.append(f"A command was interrupted while it wrote {', '.join(begun)}: give it again.")
    if lost:
        told.append(
            f"{', '.join(lost)} cannot be made again from the rest: restore from a copy, or fit again with another "
            "--out."
        )
    if again and not lost:
        told.append(f"The same 'semimetric fit' with --resume makes again: {', '.join(again)}.")
    return " ".join(told) or "All files are as they were written."


def _kind(run: Run) -> Any:
    return run.config().get("kind")
