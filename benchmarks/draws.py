"""Run every property test of a checkout with many random draws, one process per core.

    python benchmarks/draws.py [CHECKOUT] [--draws 2000] [--parts 4] [--limit 500] [--total 580] [--jobs N] [-k WORD]

Needs pytest and hypothesis alone. Each property runs in PARTS processes with other seeds, DRAWS / PARTS examples each.
Exit status 0: all ran and passed; 1: something failed; 2: nothing failed, but something did not finish.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

INI = """[pytest]
testpaths = tests
pythonpath = {root}/tests {root}
markers =
    data: needs benchmark data
    gpu: needs a CUDA device
    slow: takes long
    timeout: of pytest-timeout, which may be missing
filterwarnings =
    error
    ignore::DeprecationWarning
    ignore::PendingDeprecationWarning
    ignore::FutureWarning
    ignore::pytest.PytestWarning
    ignore::pytest.PytestConfigWarning
    ignore::ImportWarning
    ignore::ResourceWarning
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser()
    options.add_argument("root", nargs="?", default=".", type=Path)
    options.add_argument("--draws", type=int, default=2000)
    options.add_argument("--parts", type=int, default=4)
    options.add_argument("--limit", type=float, default=500, help="seconds per process")
    options.add_argument("--total", type=float, default=580, help="seconds in all")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("-k", default="")
    return options


def main() -> int:
    """Run all property tests, print failures and a summary."""
    given = parser().parse_args()
    root = given.root.resolve()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        ini = Path(scratch) / "pytest.ini"
        ini.write_text(INI.format(root=root))
        environment = os.environ | {
            "SEMIMETRIC_DRAWS": str(-(-given.draws // given.parts)),
            "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(scratch) / "hypothesis"),
            **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")},
        }
        command = [sys.executable, "-m", "pytest", "-c", str(ini), f"--rootdir={root}", "--import-mode=importlib"]
        command += ["-p", "no:cacheprovider", "-q", "--tb=short", "--no-header", "-p", "no:randomly"]

        def pytest(*more: str, limit: float) -> tuple[int | None, str]:
            try:
                done = subprocess.run(
                    [*command, *more],
                    cwd=root,
                    env=environment,
                    timeout=limit,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            except subprocess.TimeoutExpired:
                return None, ""
            return done.returncode, done.stdout

        select = ["-m", "hypothesis", "--continue-on-collection-errors"] + (["-k", given.k] if given.k else [])
        _, listed = pytest("--collect-only", *select, limit=300)
        tests = [line.strip() for line in listed.splitlines() if "::" in line and not line.startswith(("ERROR", " "))]
        missing = [line for line in listed.splitlines() if line.startswith("ERROR")]
        if not tests:
            print(listed)
            return 1
        print(
            f"{len(tests)} property tests, {given.parts} x {environment['SEMIMETRIC_DRAWS']} draws, "
            f"{given.jobs} processes, seed {given.seed}; not collected: {missing or 'nothing'}",
            flush=True,
        )

        def run(test: str, part: int) -> tuple[str, float, str]:
            left = given.total - (time.monotonic() - began)
            if left < 5:
                return "not begun", 0.0, ""
            start = time.monotonic()
            code, said = pytest(test, f"--hypothesis-seed={given.seed + part}", limit=min(given.limit, left))
            took = time.monotonic() - start
            if code is None:
                return "not finished", took, ""
            if code:
                return "failed", took, said
            return ("skipped" if " passed" not in said else "passed"), took, said

        results: dict[tuple[str, int], tuple[str, float, str]] = {}
        with ThreadPoolExecutor(given.jobs) as pool:
            jobs = {pool.submit(run, test, part): (test, part) for part in range(given.parts) for test in tests}
            for job in as_completed(jobs):
                results[jobs[job]] = job.result()
                kind, took, said = job.result()
                if kind == "failed":
                    test, part = jobs[job]
                    print(f"\n=== FAILED {test} (seed {given.seed + part}, {took:.0f} s)", flush=True)
                    print("\n".join(said.splitlines()[-70:]), flush=True)
    kinds = {
        kind: sorted({test for (test, _), r in results.items() if r[0] == kind})
        for kind in ("failed", "not finished", "not begun", "skipped")
    }
    print("\nslowest:")
    for (test, part), (kind, took, _) in sorted(results.items(), key=lambda item: -item[1][1])[:15]:
        print(f"  {took:6.1f} s  {kind}  {test} (part {part})")
    for kind, names in kinds.items():
        if names:
            print(f"{kind}: {len(names)} tests")
            for name in names:
                parts = sum(results[name, part][0] == kind for part in range(given.parts))
                print(f"  {name} ({parts} of {given.parts} parts)")
    whole = sum(all(results[test, part][0] == "passed" for part in range(given.parts)) for test in tests)
    print(f"{whole} of {len(tests)} property tests passed with all draws; {time.monotonic() - began:.0f} s")
    return 1 if kinds["failed"] else 2 if whole < len(tests) - len(kinds["skipped"]) else 0


if __name__ == "__main__":
    sys.exit(main())
