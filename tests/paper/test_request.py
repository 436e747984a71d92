"""What is asked for: tables, datasets, methods, seeds, and a quick look at all of it."""

from __future__ import annotations

import pytest

from semimetric.core.errors import InputError
from semimetric.paper.experiments import TABLES, default_seeds, is_photographs
from semimetric.paper.published import published_row
from semimetric.paper.request import TARGETS, Request

SMALL = ("mnist", "fashion-mnist", "cifar10")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": ("table9",)}, "target must be one of stages, table1, .*complexity, all, got 'table9'"),
        ({"targets": ("table1", "Table2")}, "got 'Table2'"),
        ({"targets": ("table1",), "datasets": ("mnits",)}, "Did you mean 'mnist'"),
        ({"targets": ("table1",), "methods": ("lrmll",)}, "method must be one of .*got 'lrmll'"),
    ],
)
def test_an_unknown_name_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Request(**arguments)


def test_targets_are_in_the_order_of_the_paper_and_once() -> None:
    assert Request(("table4", "table1", "table4")).names() == ("table1", "table4")
    assert Request(("all",)).names() == Request(("table1", "all")).names() == TARGETS
    assert {*TARGETS} == {*TABLES, "complexity"}


def test_a_table_keeps_the_datasets_methods_and_seeds_that_are_asked_for() -> None:
    (table,) = Request(("table1",), ("cifar10", "mnist"), ("lrml", "apit"), (4, 2)).tables()
    assert table.datasets == ("cifar10", "mnist")
    assert {row.method for row in table.rows} == {"lrml", "apit"}
    cells = Request(("table1",), ("mnist",), ("lrml",), (4, 2)).cells()
    assert [(cell.dataset, cell.method, cell.seed) for cell in cells] == [("mnist", "lrml", 4), ("mnist", "lrml", 2)]


def test_what_is_said_twice_counts_once() -> None:
    twice = Request(("table4",), ("mnist", "mnist"), ("affinity-triplets",) * 2, (1, 1, 0))
    assert (twice.datasets, twice.methods, twice.seeds) == (("mnist",), ("affinity-triplets",), (1, 0))
    assert len(twice.cells()) == len({cell.identity for cell in twice.cells()}) == 4


def test_a_table_without_the_dataset_or_method_is_refused_if_it_was_named() -> None:
    with pytest.raises(InputError, match=r"table2 is of cub200, cars196, and --datasets names none of them\. Name"):
        Request(("table1", "table2"), ("mnist",)).tables()
    with pytest.raises(InputError, match="table4 has rows of affinity-triplets, and --methods names none of them"):
        Request(("table4",), methods=("lrml",)).tables()


def test_all_is_what_has_the_datasets_and_methods() -> None:
    found = {table.name: table.datasets for table in Request(("all",), SMALL).tables()}
    assert found == {
        "stages": SMALL,
        "table1": SMALL,
        "table4": SMALL,
        "convergence": ("mnist",),
        "tsne": ("mnist", "cifar10"),
    }
    assert [table.name for table in Request(("all",), methods=("seraph",)).tables()] == [
        "table1",
        "table2",
        "retrieval",
    ]
    with pytest.raises(InputError, match="table5 is of cub200"):
        Request(("all", "table5"), SMALL).tables()
    with pytest.raises(InputError, match="no table has a row of these --datasets and --methods"):
        Request(("all",), ("digits",)).tables()


def test_photographs_have_three_seeds_and_the_others_five() -> None:
    assert is_photographs("cub200")
    assert not is_photographs("mnist")
    assert (default_seeds("cars196"), default_seeds("digits")) == ([0, 1, 2], [0, 1, 2, 3, 4])
    seeds = {(cell.dataset, cell.seed) for cell in Request(("stages",), ("mnist", "cub200")).cells()}
    assert seeds == {*(("mnist", seed) for seed in range(5)), *(("cub200", seed) for seed in range(3))}
    assert {cell.seed for cell in Request(("tsne",)).cells()} == {0}


def test_a_quick_look_touches_every_table_on_digits() -> None:
    tables = Request(("all",), quick=True).tables()
    assert all("quick: digits, one epoch" in table.title for table in tables)
    assert not any("quick" in table.title for table in Request(("all",)).tables())
    assert [table.name for table in tables] == [*TABLES]
    for table in tables:
        assert (table.datasets, table.seeds) == (("digits",), (0,))
        whole = TABLES[table.name].rows
        assert len(table.rows) == (len(whole) if TABLES[table.name].quick_rows is None else 2)
        for row in table.rows:
            (cell,) = table.cells(row, "digits", (), True)
            assert cell.plan().training.epochs <= 1
    kept = {name for cell in Request(("all",), quick=True).cells() for name in cell.keeps}
    assert kept == {"map", "neighbors"}
    assert not all(cell.scored for cell in Request(("sweep",), quick=True).cells())
    assert Request(("table5",), ("mnist",), quick=True).tables()[0].datasets == ("mnist",)


def test_on_photographs_a_row_has_more_settings() -> None:
    (row,) = (row for row in TABLES["table1"].rows if row.title == "Deep-LRML")
    cells = {name: TABLES["table1"].cells(row, name, (0,))[0].plan() for name in ("mnist", "cub200")}
    assert cells["cub200"].training.epochs == 1 < cells["mnist"].training.epochs
    assert cells["cub200"].training.lr == 0.0 < cells["mnist"].training.lr


def test_the_papers_protocol_is_the_preset_of_the_paper() -> None:
    for cell in Request(("all",), seeds=(0,)).cells():
        if cell.preset == "paper":
            plan = cell.plan()
            assert (plan.split.validation_share > 0, plan.training.selection) == (True, "validation"), cell
    rows = {row.title: row for row in TABLES["table1"].rows}
    assert TABLES["table1"].cells(rows["consensus"], "mnist", (0,))[0].preset == "default"
    assert TABLES["table1"].cells(rows["Initial"], "mnist", (0,))[0].preset == "paper"


def test_rows_that_answer_to_the_paper_name_rows_that_it_has() -> None:
    """But for the angle of 50 degrees, which the paper left out."""
    for table in TABLES.values():
        for row in table.rows:
            if row.published and row.title != "50°":
                assert any(published_row(dataset, row.published) for dataset in table.datasets), row


@pytest.mark.parametrize(
    ("dataset", "row", "figures"),
    [
        ("mnist", "initial", (17.4, 86.5, 92.4, 95.9, 97.6)),
        ("cifar10", "affinity-triplets", (25.3, 41.4, 57.3, 72.6, 84.9)),
        ("fashion-mnist", "w/o orth", (50.3, 73.3, 82.4, 89.7, 94.4)),
        ("cub200", "affinity-triplets", (54.0, 44.8, 56.9, 69.1, 79.9)),
        ("cub200", "triplet", (None, 42.6, 55.2, 66.9, 77.6)),
        ("cars196", "45", (40.7, 45.7, 58.1, 69.5, 80.4)),
        ("cars196", "50", None),
        ("cub200", "45", None),
        ("cars196", "triplet", None),
        ("cub200", "w/o orth", None),
        ("digits", "initial", None),
        ("mnist", "consensus", None),
    ],
)
def test_the_papers_figures(dataset: str, row: str, figures: tuple | None) -> None:
    assert published_row(dataset, row) == figures
