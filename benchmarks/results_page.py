"""Fill the tables of docs/results.md from the committed records of ``semimetric reproduce``.

    python benchmarks/results_page.py
    python benchmarks/results_page.py --check

A block of the page begins with ``<!-- begin NAME -->`` and ends with ``<!-- end NAME -->``; all between is replaced.
``--check`` writes nothing and ends with an error if the page is not current.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from semimetric.core.files import read_json
from semimetric.paper.complexity import Growth
from semimetric.paper.experiments import PROPAGATED, TABLES
from semimetric.paper.records import Records
from semimetric.paper.reproduce import complexity_page
from semimetric.paper.request import Request
from semimetric.paper.runner import Grid, grid_of_records
from semimetric.paper.tables import Line, as_markdown, correlations, large_differences, lines_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "benchmarks" / "results" / "paper"

KEPT = "graph_term_kept"
COMPARED = ("table1", "table2", "table3", "table4", "table5", "alpha")

START = "starts from all features of the encoder, which are ahead of the paper's row already"
FROZEN = "a matrix on frozen features is trained, not the network"
SOFTMAX = "whitened images and a better softmax start: stage 2 is ahead of the paper's row already"

EXPLANATIONS: tuple[tuple[str, str, str, str], ...] = (
    ("mnist|fashion-mnist", "Initial", "nmi", "one draw of L there, and perhaps unit length (see the stages)"),
    ("cub200|cars196", "Initial", ".*", "unexplained; the R-MAC features may differ (weights, regions, whitening)"),
    ("mnist|fashion-mnist|cifar10", "Deep-(APLLR|APIT).*", ".*", "our prior is shrunk, so that it is never singular"),
    ("mnist", "Deep-.*", ".*", START),
    ("fashion-mnist", "Deep-.*", "recall@1", START),
    ("cifar10", ".*", ".*", SOFTMAX),
    ("cub200", "Deep-.*", ".*", START),
    ("cars196", "Deep-.*", "recall@1", START),
    ("cub200|cars196", "(exemplar|instance|deepcluster|synthetic|triplet|angular)", ".*", FROZEN),
    (
        "cars196",
        "affinity-triplets.*end to end",
        "recall@1",
        "three epochs, few anchors; frozen features do better",
    ),
    ("cub200", "affinity-triplets.*", "recall@1", "unexplained; larger photographs may help"),
)
"""Why a row differs from the paper's: patterns of dataset, title and column, and the reason; the first that fits."""


class Page:
    """The blocks of the page, from the committed records."""

    def __init__(self) -> None:
        request = Request(tuple(TABLES))
        self.grid: Grid = grid_of_records(request.cells(), Records(RESULTS / "records"))
        tables = {table.name: table for table in request.tables()}
        self.lines = {name: lines_of(table, self.grid, table.datasets, (), False) for name, table in tables.items()}

    def blocks(self) -> dict[str, Callable[[], str]]:
        """What fills each block, by its name."""
        named: dict[str, Callable[[], str]] = {name: lambda name=name: self.table(name) for name in TABLES}
        return named | {
            "correlations": self.correlations,
            "differences": self.differences,
            "kept": self.kept,
            "missing": self.missing,
            "origin": self.origin,
            "complexity": complexity_table,
            "unit-length": unit_length_table,
        }

    def table(self, name: str) -> str:
        """The table with a command for each row."""
        lines = self.lines[name]
        if not lines:
            return "Not measured yet.\n"
        commands = "\n".join(f"    {line.commands[0]}" for line in lines)
        about = f"<details><summary>One command for each row ({len(lines)})</summary>\n\n{commands}\n\n</details>\n"
        return f"{as_markdown(lines)}\n{about}"

    def correlations(self) -> str:
        """Rank correlations by table and dataset."""
        rows = ["| table | dataset | methods | by NMI | by R@1 |", "|---|---|---|---|---|"]
        for name in ("table1", "table2", "table3"):
            for dataset, found in correlations(self.lines[name]).items():
                ranks = [f"{found[column]:.2f}" if column in found else "–" for column in ("nmi", "recall@1")]
                rows.append(
                    f"| {TABLES[name].title.partition(':')[0]} | {dataset} | {found['methods']} | "
                    + " | ".join(ranks)
                    + " |"
                )
        return "\n".join(rows) + "\n"

    def differences(self) -> str:
        """Every difference of more than two points, with its reason."""
        rows = ["| dataset | row | score | here | paper | reason |", "|---|---|---|---|---|---|"]
        seen = set()
        for name in COMPARED:
            for line, column, difference in large_differences(self.lines[name]):
                key = (line.dataset, line.title, column)
                if key in seen:
                    continue
                seen.add(key)
                ours = line.mean[column]
                shown = {"nmi": "NMI", "recall@1": "R@1"}[column]
                cells = [
                    line.dataset,
                    line.title,
                    shown,
                    f"{ours:.1f}",
                    f"{ours - difference:.1f}",
                    reason(line, column),
                ]
                rows.append("| " + " | ".join(cells) + " |")
        return "\n".join(rows) + "\n"

    def kept(self) -> str:
        """How much of the graph's term APLLR and APIT keep, as a mean over seeds."""
        rows = ["| dataset | row | epoch 1 | last epoch |", "|---|---|---|---|"]
        for table in Request(("table1", "table2")).tables():
            for dataset in table.datasets:
                for row in (row for row in table.rows if row.method in PROPAGATED and row.protocol == "paper"):
                    found = [self.grid.record(cell) for cell in table.cells(row, dataset)]
                    logs = [[line[KEPT] for line in r["history"] if line.get(KEPT) is not None] for r in found if r]
                    if not any(logs):
                        continue
                    means = [statistics.mean(100 * log[place] for log in logs if log) for place in (0, -1)]
                    rows.append(f"| {dataset} | {row.title} | " + " | ".join(map(share, means)) + " |")
        return "\n".join(rows) + "\n"

    def missing(self) -> str:
        """How many fits have no result yet, by table."""
        rows = ["| table | fits | without a result |", "|---|---|---|"]
        request = Request(tuple(TABLES))
        for table in request.tables():
            cells = [c for dataset in table.datasets for row in table.rows for c in table.cells(row, dataset)]
            absent = sum(self.grid.record(cell) is None for cell in cells)
            rows.append(f"| {table.name} | {len(cells)} | {absent or 'none'} |")
        return "\n".join(rows) + "\n"

    def origin(self) -> str:
        """Devices and versions of the code behind the records."""
        records = list(self.grid.found.values())
        devices = sorted({record["hardware"]["device"] for record in records})
        versions = sorted({record["code"] for record in records})
        fits = {record["key"]: record["wall"] / 60 for record in records}
        return (
            f"- Devices: {', '.join(devices)}.\n- Versions of the code: {', '.join(versions)}.\n"
            f"- {len(fits)} fits of {sum(fits.values()):.0f} minutes together; up to fifteen of them shared the GPU.\n"
        )


def share(per_cent: float) -> str:
    """A share with one decimal; a smaller one is said to be so."""
    return f"{per_cent:.1f} %" if per_cent >= 0.1 else "< 0.1 %"


def unit_length_table() -> str:
    """Stages scored as they are and at unit length."""
    found = read_json(ROOT / "benchmarks" / "results" / "unit_length.json")
    rows = ["| dataset | stage | NMI | R@1 | NMI, unit length | R@1, unit length |", "|---|---|---|---|---|---|"]
    for dataset, stage in dict.fromkeys((row["dataset"], row["stage"]) for row in found["rows"]):
        mine = [row["scores"] for row in found["rows"] if (row["dataset"], row["stage"]) == (dataset, stage)]
        cells = [
            f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
            for way in ("as it is", "unit length")
            for name in ("nmi", "recall@1")
            for values in [[100 * scores[way][name] for scores in mine]]
        ]
        rows.append("| " + " | ".join([dataset, stage, *cells]) + " |")
    return "\n".join(rows) + f"\n\n    {found['command']}\n"


def complexity_table() -> str:
    """The measured exponents."""
    growth = [Growth(**entry) for entry in read_json(RESULTS / "complexity.json")["growth"]]
    return complexity_page(growth).partition("\n\n")[2]


def reason(line: Line, column: str) -> str:
    """The first explanation that fits a difference."""
    for dataset, title, columns, text in EXPLANATIONS:
        if all(re.fullmatch(p, v) for p, v in ((dataset, line.dataset), (title, line.title), (columns, column))):
            return text
    return "unexplained"


def filled(text: str, blocks: dict[str, Callable[[], str]]) -> str:
    """The page with all its blocks filled; a block without a name that is known is an error."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in blocks:
            raise SystemExit(f"docs/results.md has a block {name!r}, which nothing fills. Known: {', '.join(blocks)}.")
        return f"<!-- begin {name} -->\n{blocks[name]()}<!-- end {name} -->"

    return re.sub(r"<!-- begin ([\w-]+) -->\n.*?<!-- end \1 -->", fill, text, flags=re.DOTALL)


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--check", action="store_true", help="write nothing; fail if the page is not current")
    return found


def main() -> None:
    """Fill the page, or check it."""
    args = parser().parse_args()
    before = PAGE.read_text()
    after = filled(before, Page().blocks())
    if args.check and before != after:
        sys.exit("docs/results.md is not current; run: python benchmarks/results_page.py")
    if not args.check:
        PAGE.write_text(after)


if __name__ == "__main__":
    main()
