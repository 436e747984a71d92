"""The folder of a study: study.json says what it is of, and nothing else is ever written over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semimetric.core.errors import RunError
from semimetric.core.files import clear_leftovers, json_text, read_json
from semimetric.core.manifest import Manifest, is_free
from semimetric.core.settings import differences


def check_study(folder: Path, asked: Mapping[str, Any]) -> None:
    """Refuse a folder that is neither free nor a study of what is ``asked``, before any data is read.

    Parameters
    ----------
    asked : method, seed, given settings and, for a benchmark, dataset
    """
    if not (folder / "study.json").exists():
        check_free(folder)
        return
    found = _read_about(folder)
    known = {name: value for name, value in found.items() if name not in ("data", "space", "given")}
    old, new = known | found.get("given", {}), {n: v for n, v in asked.items() if n != "given"} | asked["given"]
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            before, now = (_said(name, settings) for settings in (old, new))
            raise RunError(
                f"the study in {folder} was made {before}, and this command is {now}. Give the same settings to "
                "continue it, or name another folder with --out."
            )


def _said(name: str, settings: Mapping[str, Any]) -> str:
    """A setting as an option of the command, or that it is not given."""
    flag = f"--{name.replace('_', '-')}"
    return f"with {flag} {settings[name]}" if settings.get(name) is not None else f"without {flag}"


def check_free(folder: Path) -> None:
    """Refuse a folder that holds anything but what a killed study left."""
    clear_leftovers(folder)
    if not is_free(folder):
        raise RunError(f"{folder} is neither an empty folder nor a study. Choose another --out.")


def open_folder(folder: Path, about: dict[str, Any]) -> None:
    """Make the folder of a study, or find the same study in it; anything else is refused untouched."""
    known, manifest = folder / "study.json", Manifest(folder)
    if known.exists():
        found = _read_about(folder)
        different = differences(found, about)
        if found.get("data") != about.get("data"):
            different = ["the data differ"]
        if different:
            raise RunError(
                f"the study in {folder} was made with other data or settings: {'; '.join(different)}. Use the same "
                "ones, or another --out."
            )
        clear_leftovers(folder)
        return
    check_free(folder)
    try:
        manifest.path.unlink(missing_ok=True)  # of a process that was killed before it wrote study.json
        manifest.put(known.name, json_text(about).encode())
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error}. Choose another --out.") from error


def _read_about(folder: Path) -> dict[str, Any]:
    """What the study in a folder is of."""
    Manifest(folder).check("study.json")
    found = read_json(folder / "study.json")
    if not (isinstance(found, dict) and isinstance(found.get("given", {}), dict)):
        raise RunError(f"{folder / 'study.json'} is damaged: it holds no settings of a study. Choose another --out.")
    return found


def drop_torn_line(journal: Path) -> None:
    """Take off what was half written to the log when its writer was killed; Optuna would write on in the same line."""
    content = journal.read_bytes() if journal.is_file() else b""
    if content and not content.endswith(b"\n"):
        with journal.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
