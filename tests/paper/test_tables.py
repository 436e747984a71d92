"""Tables of results: means, deviations, and ours beside the paper's."""

from __future__ import annotations

import dataclasses
import json
import statistics

import pytest
from scipy.stats import spearmanr

from semimetric.paper.experiments import Row, Table
from semimetric.paper.runner import Grid
from semimetric.paper.tables import (
    Line,
    as_json,
    as_latex,
    as_markdown,
    correlations,
    large_differences,
    line_of,
    lines_of,
)

COLUMNS = ("nmi", "recall@1", "recall@2", "recall@4", "recall@8")

LINE = Line(
    dataset="mnist",
    title="w/o orth",
    protocol="paper",
    trains="",
    seeds=(0, 1, 2),
    mean=dict(zip(COLUMNS, (41.26, 90.0, 95.34, 97.25, 98.61), strict=True)),
    deviation=dict(zip(COLUMNS, (1.449, 0.5, 0.04, 0.1, 0.0), strict=True)),
    published=(42.9, 91.5, 95.3, 97.3, 98.6),
    epoch=4.4,
    epochs=10.6,
    minutes=1.5,
    device="CPU",
    code=("1+a",),
    commands=("semimetric fit --seed 0", "semimetric fit --seed 1", "semimetric fit --seed 2"),
)
ALONE = dataclasses.replace(
    LINE,
    title="R_&_D: 45°, 100 %",
    seeds=(0,),
    deviation=dict.fromkeys(COLUMNS),
    published=(None, 91.5, 95.3, 97.3, 98.6),
    epochs=0.0,
)


def record(seed: int, recall: float, **values) -> dict:
    scores = {name: recall / (number + 1) for number, name in enumerate(COLUMNS)}
    about = {"seed": seed, "final": scores, "best_epoch": 2 * seed, "epochs": 7 + seed, "wall": 60.0 * (seed + 1)}
    about |= {"hardware": {"device": "CPU"}, "code": "1+a", "command": f"fit --seed {seed}", "kept": {}}
    return about | values


def test_a_line_is_mean_and_deviation_over_seeds_in_per_cent() -> None:
    recalls = [0.912, 0.934, 0.899, 0.951]
    line = line_of(Row("ours", "lrml", published="lrml"), "mnist", [record(s, r) for s, r in enumerate(recalls)])
    for number, name in enumerate(COLUMNS):
        values = [100 * recall / (number + 1) for recall in recalls]
        assert line.mean[name] == pytest.approx(statistics.mean(values), abs=1e-12)
        assert line.deviation[name] == pytest.approx(statistics.stdev(values), abs=1e-12)
    assert line.seeds == (0, 1, 2, 3)
    assert (line.epoch, line.epochs, line.minutes) == (3.0, 8.5, 2.5)
    assert line.published == (48.3, 88.7, 93.2, 95.9, 97.6)
    assert line.commands == tuple(f"fit --seed {seed}" for seed in range(4))
    assert line.difference("nmi") == pytest.approx(100 * statistics.mean(recalls) - 48.3)


def test_one_seed_has_no_deviation_and_several_devices_are_all_named() -> None:
    row = Row("ours", "consensus", "ours")
    line = line_of(row, "cub200", [record(0, 0.5)])
    assert line.deviation == dict.fromkeys(COLUMNS)
    assert (line.published, line.difference("nmi"), line.trains) == (None, None, "frozen features")
    assert line.cells()[:2] == ["50.0", "25.0"]
    others = [record(0, 0.5), record(1, 0.5, hardware={"device": "A"}, code="2+b")]
    two = line_of(dataclasses.replace(row, trains="network"), "cub200", others)
    assert (two.device, two.code, two.trains) == ("A, CPU", ("1+a", "2+b"), "network")


def test_a_fit_that_is_not_scored_has_the_scores_of_its_best_epoch_on_withheld_examples() -> None:
    history = [{"selection_nmi": 0.1 * epoch, "selection_recall@1": 0.2 * epoch} for epoch in range(4)]
    judged = record(1, 0.0, history=history)
    del judged["final"]
    line = line_of(Row("lr 0", "lrml"), "digits", [judged])
    assert line.mean == pytest.approx({"nmi": 20.0, "recall@1": 40.0})
    assert line.cells() == ["20.0", "40.0", "–", "–", "–"]


def test_lines_are_of_rows_with_results() -> None:
    rows = (Row("a", "lrml", settings={"epochs": 0}), Row("b", "isdml", settings={"epochs": 0}))
    table = Table("t", "T", ("digits",), rows, seeds=(0, 1))
    cells = [cell for row in rows for cell in table.cells(row, "digits")]
    grid = Grid(cells, {cell.identity: number for number, cell in enumerate(cells)}, {1: record(1, 0.4)})
    (line,) = lines_of(table, grid, ("digits",), (), False)
    assert (line.title, line.seeds) == ("a", (1,))


def test_markdown_has_ours_and_below_it_the_papers() -> None:
    assert as_markdown([LINE, ALONE]) == (
        "| mnist | NMI | R@1 | R@2 | R@4 | R@8 | seeds | epoch |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| w/o orth | 41.3 ± 1.4 | 90.0 ± 0.5 | 95.3 ± 0.0 | 97.2 ± 0.1 | 98.6 ± 0.0 | 3 | 4 of 11 |\n"
        "| *paper* | *42.9* | *91.5* | *95.3* | *97.3* | *98.6* |  |  |\n"
        "| R_&_D: 45°, 100 % | 41.3 | 90.0 | 95.3 | 97.2 | 98.6 | 1 |  |\n"
        "| *paper* | – | *91.5* | *95.3* | *97.3* | *98.6* |  |  |\n"
    )


def test_markdown_says_whose_protocol_where_there_are_two() -> None:
    ours = dataclasses.replace(ALONE, title="consensus", protocol="ours", trains="network", published=None)
    first, second = as_markdown([LINE, ours, dataclasses.replace(ours, dataset="cifar10")]).split("\n\n")
    lines = first.splitlines()
    assert lines[0].startswith("| mnist | how | NMI |")
    assert lines[2].startswith("| w/o orth | paper's protocol | 41.3 ± 1.4 |")
    assert lines[3].startswith("| *paper* |  | *42.9* |")
    assert lines[4].startswith("| consensus | our protocol, network | 41.3 |")
    assert second.startswith("| cifar10 | NMI |")
    assert len({line.count("|") for line in lines}) == 1


def test_latex_is_a_whole_table() -> None:
    ours = r"41.3 $\pm$ 1.4 & 90.0 $\pm$ 0.5 & 95.3 $\pm$ 0.0 & 97.2 $\pm$ 0.1 & 98.6 $\pm$ 0.0"
    text = as_latex([LINE, dataclasses.replace(LINE, dataset="fashion_mnist", published=None)], "Table 4 & more")
    assert text == (
        "\\begin{table}\n\\centering\n\\begin{tabular}{lrrrrr}\n\\toprule\n"
        "Method & NMI & R@1 & R@2 & R@4 & R@8 \\\\\n"
        "\\midrule \\multicolumn{6}{l}{mnist} \\\\ \\midrule\n"
        f"w/o orth (paper's protocol) & {ours} \\\\\n"
        "\\quad paper & 42.9 & 91.5 & 95.3 & 97.3 & 98.6 \\\\\n"
        "\\midrule \\multicolumn{6}{l}{fashion\\_mnist} \\\\ \\midrule\n"
        f"w/o orth (paper's protocol) & {ours} \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\caption{Table 4 \\& more}\n\\end{table}\n"
    )


def test_latex_escapes_what_would_not_compile() -> None:
    (row, paper) = (line for line in as_latex([ALONE], "T").splitlines() if line.startswith(("R", r"\quad")))
    assert row.startswith(r"R\_\&\_D: 45$^\circ$, 100 \% (paper's protocol) & 41.3 & ")
    assert paper.startswith(r"\quad paper & -- & 91.5 & ")
    missing = dataclasses.replace(ALONE, mean={"nmi": 1.0})
    assert " & 1.0 & -- & -- & -- & -- " in as_latex([missing], "T")
    written = as_latex([dataclasses.replace(ALONE, title=r"a#b$c{d}e~f^g\h")], "T")
    assert r"a\#b\$c\{d\}e\textasciitilde{}f\textasciicircum{}g\textbackslash{}h (paper's protocol)" in written


def methods(*figures: tuple[float, float, float, float]) -> list[Line]:
    """Lines of ours and the paper's NMI and Recall@1."""
    return [
        dataclasses.replace(
            LINE,
            title=f"method {number}",
            mean=LINE.mean | {"nmi": nmi, "recall@1": recall},
            published=(theirs, their_recall, 0.0, 0.0, 0.0),
        )
        for number, (nmi, recall, theirs, their_recall) in enumerate(figures)
    ]


FIGURES = [(40.0, 90.0, 42.0, 91.0), (45.0, 80.0, 41.0, 85.0), (50.0, 85.0, 50.0, 92.0), (30.0, 70.0, 48.0, 60.0)]


def test_rank_correlations_are_those_of_scipy() -> None:
    found = correlations(methods(*FIGURES))["mnist"]
    ours, our_recall, theirs, their_recall = zip(*FIGURES, strict=True)
    assert found["methods"] == 4
    assert found["nmi"] == pytest.approx(spearmanr(ours, theirs).statistic) == pytest.approx(0.2)
    assert found["recall@1"] == pytest.approx(spearmanr(our_recall, their_recall).statistic) == pytest.approx(0.8)


def test_rank_correlations_are_of_methods_of_the_papers_protocol() -> None:
    lines = methods(*FIGURES)
    others = [
        dataclasses.replace(lines[0], title="Initial"),
        dataclasses.replace(lines[0], title="Deep-ISDML, end to end"),
        dataclasses.replace(lines[0], protocol="ours"),
        dataclasses.replace(lines[0], published=None),
        dataclasses.replace(lines[0], title="method 0, changed", mean=lines[3].mean),
    ]
    assert correlations([*lines, *others]) == correlations(lines)
    assert correlations(lines[:2]) == {}
    elsewhere = [dataclasses.replace(line, dataset="cifar10") for line in lines[:3]]
    assert correlations([*lines, *elsewhere]).keys() == {"mnist", "cifar10"}


def test_a_column_that_the_paper_has_not_for_all_has_no_correlation() -> None:
    lines = methods(*FIGURES)
    lines[1] = dataclasses.replace(lines[1], published=(None, *lines[1].published[1:]))
    assert correlations(lines)["mnist"].keys() == {"methods", "recall@1"}


def test_methods_that_are_all_alike_have_no_order() -> None:
    lines = methods(*((40.0, 90.0 + n, 42.0 + n, 91.0 + n) for n in range(3)))
    assert correlations(lines)["mnist"] == {"methods": 3, "recall@1": pytest.approx(1.0)}
    json.dumps(as_json(Table("t", "T", ("mnist",), ()), lines), allow_nan=False)


def test_differences_of_more_than_two_points_are_large() -> None:
    close, far = methods((44.0, 93.0, 42.0, 91.0), (39.9, 93.1, 42.0, 91.0))
    assert large_differences([close]) == []
    found = large_differences([close, far, dataclasses.replace(far, protocol="ours")])
    assert [(line, column, pytest.approx(value)) for line, column, value in found] == [
        (far, "nmi", -2.1),
        (far, "recall@1", 2.1),
    ]
    unknown = dataclasses.replace(far, published=(None, *far.published[1:]))
    assert [column for _, column, _ in large_differences([unknown])] == ["recall@1"]


def test_json_holds_every_line_rounded() -> None:
    value = as_json(Table("t", "T", ("mnist",), ()), methods(*FIGURES))
    assert json.loads(json.dumps(value)) == value
    assert (value["name"], value["title"]) == ("t", "T")
    assert [line["mean"]["nmi"] for line in value["lines"]] == [40.0, 45.0, 50.0, 30.0]
    assert value["lines"][0]["commands"] == list(LINE.commands)
    assert value["correlations"]["mnist"]["nmi"] == 0.2
