"""Which fits have to be run, and what is refused before any of them is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.birds import write_birds

from semimetric.core.errors import InputError
from semimetric.paper.cells import Cell, code_version, settings_of
from semimetric.paper.records import Records
from semimetric.paper.runner import Grid, check_inputs, grid_of_records, plan_grid
from semimetric.paper.work import Place

CELL = Cell("digits", "lrml", 0, settings={"epochs": 0})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.delenv("SEMIMETRIC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no cache"))
    return Place(tmp_path / "out", device="cpu")


def result(cell: Cell, place: Place, **values) -> dict:
    about = {"key": place.key(cell), "dataset": cell.dataset, "command": cell.command(), "code": code_version()}
    about |= {"plan": settings_of(place.plan(cell)), "history": [], "seed": cell.seed}
    return about | {"kept": {name: {} for name in cell.keeps}} | values


def planned(cells: list[Cell], place: Place, reuse: str, *results: dict) -> Grid:
    records = Records(place.folder / "records")
    for one in results:
        records.add(one)
    return plan_grid(cells, records, place, reuse)


@pytest.mark.parametrize(
    ("reuse", "of_this_code", "of_another"), [("same-code", 1, 0), ("any-code", 1, 1), ("none", 0, 0)]
)
def test_results_are_reused_as_asked(place: Place, reuse: str, of_this_code: int, of_another: int) -> None:
    assert planned([CELL], place, reuse).missing == [0]
    assert len(planned([CELL], place, reuse, result(CELL, place)).found) == of_this_code
    grid = planned([CELL], place, reuse, result(CELL, place, code="0.1+deadbeef"))
    assert len(grid.found) == of_another == 1 - len(grid.missing)
    assert (grid.record(CELL) is not None) == bool(of_another)


def test_a_result_of_other_settings_is_no_result(place: Place) -> None:
    other = dataclasses.replace(CELL, seed=1)
    grid = planned([CELL, other], place, "any-code", result(other, place))
    assert (grid.missing, list(grid.found)) == ([0], [1])
    assert grid.record(CELL) is None
    assert grid.record(other)["command"] == other.command()
    assert grid.record(dataclasses.replace(CELL, seed=2)) is None


def test_equal_plans_are_one_fit_that_keeps_what_any_of_them_asks_for(place: Place) -> None:
    neighbours = dataclasses.replace(CELL, keeps=("neighbors",))
    said = dataclasses.replace(CELL, settings={"epochs": 0, "labels_per_class": 10}, keeps=("map",))
    assert said.command() != CELL.command()
    grid = planned([CELL, neighbours, said], place, "same-code")
    assert grid.missing == [0]
    assert grid.cells == [dataclasses.replace(CELL, keeps=("map", "neighbors"))]
    done = result(grid.cells[0], place)
    grid = planned([CELL, neighbours, said], place, "same-code", done)
    assert [grid.record(cell) for cell in (CELL, neighbours, said)] == [done] * 3


def test_a_result_without_what_is_asked_for_is_run_again_and_loses_nothing(place: Place) -> None:
    kept = dataclasses.replace(CELL, keeps=("map",))
    wanted = dataclasses.replace(CELL, keeps=("neighbors",))
    assert planned([CELL], place, "same-code", result(kept, place)).missing == []
    grid = planned([wanted], place, "same-code", result(kept, place))
    assert grid.missing == [0]
    assert grid.cells[0].keeps == ("map", "neighbors")
    assert planned([wanted], place, "none").cells[0].keeps == ("map", "neighbors")


def test_scored_and_unscored_fits_are_two(place: Place) -> None:
    assert len(planned([CELL, dataclasses.replace(CELL, scored=False)], place, "same-code").cells) == 2


def test_what_is_there_is_found_without_data_and_whatever_the_code(place: Place) -> None:
    birds = Cell("cub200", "lrml", 0)
    record = result(CELL, place, code="0.1+deadbeef")
    record["key"] = record["key"].partition("-")[0] + "-000000"  # of another copy of the data
    records = Records(place.folder / "records")
    records.add(record)
    mapped = dataclasses.replace(CELL, keeps=("map",))
    for cells in ([birds, CELL, mapped], [birds, mapped, CELL]):  # what one table lacks does not hide it from another
        grid = grid_of_records(cells, records)
        assert grid.found == {1: record}
        assert grid.missing == [0]
        assert [grid.record(cell) for cell in (birds, CELL, mapped)] == [None, record, None]


def test_a_result_of_an_older_default_is_no_result(place: Place) -> None:
    record = result(CELL, place)
    older = json.loads(json.dumps(record))
    older["plan"]["method_settings"]["gamma"] = 0.5
    newer = json.loads(json.dumps(record))
    newer["plan"]["training"].pop("patience")  # a setting that came later, with a neutral default
    for one, missing in ((older, [0]), (newer, [])):
        assert planned([CELL], place, "any-code", one).missing == missing
        records = Records(place.folder / "other")
        records.add(one)
        assert grid_of_records([CELL], records).missing == missing


def test_missing_data_is_named(place: Place, tmp_path: Path) -> None:
    cells = [CELL, Cell("mnist", "lrml", 0), Cell("cifar10", "lrml", 0)]
    with pytest.raises(InputError, match=r"^the data of cifar10, mnist was not found\. Name the folder .* --data-dir"):
        check_inputs(cells, place)
    check_inputs([CELL], place)
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"")
    partly = dataclasses.replace(place, data_dir=tmp_path)
    with pytest.raises(
        InputError, match=r"cifar10 was not found; the data of mnist lacks .*t10k-images-idx3-ubyte.*, or"
    ):
        check_inputs(cells, partly)


def test_missing_weights_are_named(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    birds = dataclasses.replace(place, data_dir=write_birds(tmp_path / "birds", monkeypatch))
    cells = [CELL, Cell("cub200", "lrml", 0)]
    with pytest.raises(
        InputError, match=r"cub200 needs the weights of a pretrained GoogLeNet\. .* --weights, or leave"
    ):
        check_inputs(cells, birds)
    with pytest.raises(InputError, match=r"no\.npz does not exist"):
        check_inputs(cells, dataclasses.replace(birds, weights=tmp_path / "no.npz"))
    weights = tmp_path / "googlenet.npz"
    weights.write_bytes(b"")
    check_inputs(cells, dataclasses.replace(birds, weights=weights))
