"""All of the faults, with counts: ``PYTHONPATH=tests python -m faults``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from helpers import book_machine, damage, foreign, kinds, moved, strange, struck
from helpers.killed import Killer

import semimetric

WHOLE = {
    "flips": 1000,
    "runs": 1100,
    "inputs": 3900,
    "kinds": 1800,
    "disk": 60,
    "numbers": 2000,
    "room": 6,
    "writers": 5,
    "kills": 200,
    "labels": 1000,
    "foreign": 1500,
    "tables": 1000,
    "formats": 1000,
    "forged": 1500,
    "moved": 300,
}


def main(share: float, names: list[str], out: Path | None, seed: int) -> int:
    """Run a share of these parts; the exit code is 1 if anything went wrong. ``out`` keeps parts that ran before."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_STATE_HOME"] = os.environ["SEMIMETRIC_CACHE"] = place
        home, folder = Path(place) / "home", Path(place) / "work"
        home.mkdir()
        folder.mkdir()
        damage.make_home(home)
        found = {name: _play(name, home, folder, max(1, round(share * WHOLE[name])), seed) for name in names}
    if out is not None:
        before = json.loads(out.read_text())["parts"] if out.exists() else {}
        about = {"made_by": "make faults", "version": semimetric.__version__, "python": sys.version.split()[0]}
        parts = {name: (before | found)[name] for name in WHOLE if name in before | found}
        totals = {name: sum(part[name] for part in parts.values()) for name in ("tried", "wrong")}
        out.write_text(json.dumps(about | totals | {"parts": parts}, indent=1) + "\n")
    return any(part["wrong"] for part in found.values())


def _play(name: str, home: Path, folder: Path, count: int, seed: int) -> dict[str, object]:
    """One part: what was tried, and what went wrong."""
    parts: dict[str, Callable[[], damage.Tally]] = {
        "flips": lambda: damage.flip_runs(home, folder, count, seed),
        "runs": lambda: damage.damage_runs(home, folder, count, seed),
        "inputs": lambda: damage.damage_inputs(home, folder, count, seed),
        "kinds": lambda: kinds.damage_kinds(kinds.make_kinds(home), folder, count, seed),
        "disk": lambda: damage.fill_disk(home, folder, count),
        "numbers": lambda: damage.odd_numbers(count, seed),
        "kills": lambda: struck.strike(_stage(home), count, seed),
        "writers": lambda: struck.write_twice(_stage(home), count),
        "room": lambda: struck.lack_room(_stage(home), count),
        "foreign": lambda: foreign.lay_foreign(foreign.make_foreign(home), folder, count, seed),
        "tables": lambda: strange.change_tables(_with_all(home), folder, count, seed),
        "formats": lambda: strange.mix_formats(kinds.make_kinds(home), folder, count, seed),
        "moved": lambda: moved.move_files(_with_all(home), folder, _killer(*book_machine.SERVER), count, seed),
        "forged": lambda: strange.forge_runs(kinds.make_kinds(home), folder, count, seed),
        "labels": lambda: book_machine.play_long(_empty(folder / "labels"), _killer(*book_machine.SERVER), count, seed),
    }
    began = time.monotonic()
    tally = parts[name]()
    tried, seconds = sum(tally.tried.values()), round(time.monotonic() - began)
    sys.stdout.write("\n".join([f"{name}: {tried} tried, {len(tally.wrong)} wrong, {seconds} s", *tally.wrong]) + "\n")
    sys.stdout.flush()
    return {
        "tried": tried,
        "wrong": len(tally.wrong),
        "seconds": seconds,
        "seed": seed,
        "kinds": dict(sorted(tally.tried.items())),
    }


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _with_all(home: Path) -> Path:
    return strange.make_tables(kinds.make_kinds(home))


def _stage(home: Path) -> struck.Stage:
    return struck.Stage(home, Path(tempfile.mkdtemp(dir=home.parent)), _killer(*struck.FURTHER))


def _killer(*further: str) -> Killer:
    return Killer(multiprocessing.get_context("forkserver"), *further)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("share", nargs="?", type=float, default=1.0, help="of all faults, from 0 to 1")
    parser.add_argument("--parts", nargs="+", choices=list(WHOLE), default=list(WHOLE))
    parser.add_argument("--out", type=Path, help="JSON file for the counts; other parts in it are kept")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    given = parser.parse_args()
    sys.exit(main(given.share, given.parts, given.out, given.seed))
