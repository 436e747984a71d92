"""How long the command line takes to start, beside ``import torch``, which it should not wait for.

    python benchmarks/startup.py --out benchmarks/results/startup.json

Prints CPU seconds, the least of several runs in turn, and their ratio to ``import torch``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from jobs import machine, write_result

COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import semimetric": [sys.executable, "-c", "import semimetric"],
    "import semimetric, SemiMetric": [sys.executable, "-c", "import semimetric; semimetric.SemiMetric"],
    "semimetric --help": [sys.executable, "-m", "semimetric", "--help"],
    "semimetric fit --help": [sys.executable, "-m", "semimetric", "fit", "--help"],
    "semimetric fit (mistyped path)": [sys.executable, "-m", "semimetric", "fit", "no/such/folder", "-o", "run"],
    "semimetric datasets": [sys.executable, "-m", "semimetric", "datasets"],
}


def cpu_seconds(command: list[str]) -> float:
    """CPU seconds of a command, user and system."""
    before = os.times()
    subprocess.run(command, capture_output=True, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Time all commands in turn, print and write the table."""
    args = parser().parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(args.repeats + 1):  # the first fills the file cache
        for name, command in COMMANDS.items():
            seconds[name].append(cpu_seconds(command))
    least = {name: min(found[1:]) for name, found in seconds.items()}
    rows = {name: {"cpu_seconds": value, "of_torch": value / least["import torch"]} for name, value in least.items()}
    write_result(args.out, machine() | {"rows": rows})
    for name, row in rows.items():
        print(f"{name:32} {row['cpu_seconds']:.2f} s  {row['of_torch']:.2f} x import torch")


if __name__ == "__main__":
    main()
