"""All of the faults, with counts: ``PYTHONPATH=tests python -m faults``."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

from helpers import damage

WHOLE = {"inputs": 3900, "runs": 1100, "flips": 1000, "disk": 60, "numbers": 2000}


def main(share: float) -> int:
    """Run a share of everything; the exit code is 1 if anything went wrong."""
    warnings.simplefilter("ignore")
    count = {name: max(1, round(share * number)) for name, number in WHOLE.items()}
    wrong: list[str] = []
    tried: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        home, folder = Path(place) / "home", Path(place) / "work"
        home.mkdir()
        folder.mkdir()
        damage.make_home(home)
        parts = {
            "flips": lambda: damage.flip_runs(home, folder, count["flips"]),
            "runs": lambda: damage.damage_runs(home, folder, count["runs"]),
            "inputs": lambda: damage.damage_inputs(home, folder, count["inputs"]),
            "disk": lambda: damage.fill_disk(home, folder, count["disk"]),
            "numbers": lambda: damage.odd_numbers(count["numbers"]),
        }
        for name, part in parts.items():
            began = time.monotonic()
            tally = part()
            tried += tally.tried
            wrong += tally.wrong
            told = (
                f"{name}: {sum(tally.tried.values())} tried, {len(tally.wrong)} wrong, {time.monotonic() - began:.0f} s"
            )
            sys.stdout.write(told + "\n")
            sys.stdout.flush()
    sys.stdout.write("\n".join([*(f"{count} {kind}" for kind, count in sorted(tried.items())), *wrong]) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
