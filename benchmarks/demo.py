"""CPU time and NMI of ``make demo`` now and at an earlier commit, in turn, seed by seed.

    git worktree add ../before COMMIT
    python benchmarks/demo.py ../before --seeds 5 --out benchmarks/results/demo.json

Both run with one thread on a CPU, with the packages of this environment. The ratio is of the sums over all seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jobs import machine, write_result

HERE = Path(__file__).parents[1]
DEMO = ["fit", "--dataset", "digits", "--labels-per-class", "5", "--threads", "1", "--device", "cpu", "-q", "--json"]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before", type=Path, help="a checkout of the earlier commit")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--out", type=Path)
    return options


def demo(tree: Path, seed: int) -> dict[str, float]:
    """CPU seconds, NMI and Recall@1 of one run with the sources in ``tree``."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "semimetric", *DEMO, "--seed", str(seed), "--out", f"{folder}/run"]
        before = os.times()
        environment = os.environ | single | {"PYTHONPATH": str(tree.resolve())}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
        after = os.times()
    scores = json.loads(done.stdout.splitlines()[-1])["final"]
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return {"cpu_seconds": seconds, "nmi": 100 * scores["nmi"], "recall": 100 * scores["recall@1"]}


def commit_of(tree: Path) -> str:
    """The commit that is checked out."""
    told = subprocess.run(
        ["git", "-C", tree, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return told.stdout.strip()


def main() -> None:
    """Run all seeds, print and write the table."""
    args = parser().parse_args()
    trees, rows = {"before": args.before, "now": HERE}, []
    for seed in range(args.seeds):
        row: dict[str, Any] = {"seed": seed} | {name: demo(tree, seed) for name, tree in trees.items()}
        rows.append(row)
        told = (f"{name} {row[name]['cpu_seconds']:.1f} s, NMI {row[name]['nmi']:.1f}" for name in trees)
        print(f"seed {seed}: {'; '.join(told)}", flush=True)
    sums = {name: {key: sum(row[name][key] for row in rows) for key in rows[0][name]} for name in trees}
    ratio = sums["now"]["cpu_seconds"] / sums["before"]["cpu_seconds"]
    gain = (sums["now"]["nmi"] - sums["before"]["nmi"]) / args.seeds
    facts = {"before": commit_of(args.before), "ratio": ratio, "nmi_gained": gain, "rows": rows}
    write_result(args.out, machine() | facts)
    print(f"CPU time {ratio:.2f} x that of {facts['before']}, NMI {gain:+.2f}")


if __name__ == "__main__":
    main()
