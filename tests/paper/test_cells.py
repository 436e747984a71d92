"""Fits of the experiments: the commands that repeat them, and what identifies their results."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from helpers.birds import write_birds
from helpers.command import semimetric

from semimetric.paper.cells import PLACES, Cell, code_version, data_version, fit_key, key_of, settings_of
from semimetric.paper.experiments import TABLES
from semimetric.paper.records import Records
from semimetric.paper.work import Place
from semimetric.pipeline.plan import Plan

RECORDS = Path(__file__).parents[2] / "benchmarks" / "results" / "paper" / "records"


def all_cells() -> dict[str, list[Cell]]:
    """One fit of every distinct row of every table, by dataset; those of --quick are on digits."""
    found: dict[str, dict] = {}
    for table in TABLES.values():
        for dataset in (*table.datasets, "digits"):
            for row in table.rows:
                (cell,) = table.cells(row, dataset, (3,), dataset == "digits")
                found.setdefault(dataset, {}).setdefault(cell.command(), cell)
    return {dataset: list(cells.values()) for dataset, cells in found.items()}


CELLS = all_cells()


@pytest.mark.parametrize("dataset", CELLS)
def test_the_command_line_understands_the_command_as_the_same_plan(dataset: str) -> None:
    assert len(CELLS[dataset]) > 5
    for cell in CELLS[dataset]:
        name, *words = shlex.split(cell.command())
        assert name == "semimetric"
        done = semimetric(*words, "--show-settings", "--json")
        assert done.code == 0, (words, done.err)
        settings = json.loads(done.out)
        settings["network"] = {name: value for name, value in settings["network"].items() if name not in PLACES}
        assert settings == json.loads(json.dumps(settings_of(cell.plan()))), words


def test_plans_that_differ_have_commands_and_keys_that_differ() -> None:
    """Not the other way round: a command may say what is the preset anyway."""
    plans: dict[str, tuple[str, str]] = {}
    for cell in (cell for cells in CELLS.values() for cell in cells):
        plan = json.dumps(settings_of(cell.plan()), sort_keys=True) + str(cell.scored)
        key = fit_key(cell, cell.plan())
        assert plans.setdefault(key, (plan, cell.command()))[0] == plan, (plans[key], cell.command())
    assert len(plans) == len({plan for plan, _ in plans.values()})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 1e-7}, "--lr 1e-07"),
        ({"lr": 0.1234567891}, "--lr 0.1234567891"),
        ({"alpha": 40.0, "k": 5}, "--alpha 40 --k 5"),
        ({"orthogonal": False}, "--no-orthogonal"),
        ({"orthogonal": True}, "--orthogonal"),
        ({"lr_schedule": "cosine"}, "--lr-schedule cosine"),
        ({"backbone": ""}, "--backbone ''"),
    ],
)
def test_settings_as_words(settings: dict, words: str) -> None:
    cell = Cell("mnist", "affinity-triplets", 2, settings=settings)
    start = "semimetric fit --dataset mnist --method affinity-triplets --preset paper --seed 2"
    assert cell.command() == f"{start} {words} --out RUN"
    assert cell.name().endswith(", seed 2")


def test_photographs_need_the_weights() -> None:
    assert Cell("cub200", "lrml", 0).command().endswith("--seed 0 --weights WEIGHTS --out RUN")


def test_weights_and_cached_features_are_for_plans_that_use_them() -> None:
    places = (Path("googlenet.npz"), Path("features.safetensors"))
    frozen = Cell("cub200", "lrml", 0).plan(*places).network
    assert (frozen.backbone, frozen.weights, frozen.descriptors) == ("googlenet-rmac", *map(str, places))
    (row,) = (row for row in TABLES["table2"].rows if row.title == "Deep-ISDML, end to end")
    whole = TABLES["table2"].cells(row, "cub200", (0,))[0].plan(*places).network
    assert (whole.backbone, whole.weights, whole.descriptors) == ("", str(places[0]), "")
    small = Cell("mnist", "lrml", 0).plan(*places).network
    assert (small.weights, small.descriptors) == ("", "")


BIRDS = Cell("cub200", "lrml", 0)


def changed_key(cell: Cell = BIRDS, data: str = "d", weights: str | None = "w") -> str:
    return key_of(cell, cell.plan(), data, weights)


def test_a_key_ignores_places_and_what_is_kept() -> None:
    key = changed_key()
    assert key == key_of(BIRDS, BIRDS.plan(Path("a"), Path("b")), "d", "w")
    assert key == changed_key(dataclasses.replace(BIRDS, keeps=("map",)))
    preset = BIRDS.plan().training
    said = dataclasses.replace(BIRDS, settings={"epochs": preset.epochs, "batch_size": preset.batch_size})
    assert changed_key(said) == key


def test_a_key_ignores_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cell, place = Cell("digits", "lrml", 0), Place(tmp_path)
    key = place.key(cell)
    monkeypatch.setattr("semimetric.paper.work.code_version", lambda: "another")
    monkeypatch.setattr("semimetric.paper.cells.code_version", lambda: "another")
    assert place.key(cell) == key == Place(tmp_path / "elsewhere", device="cpu", threads=2).key(cell)


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": "cars196"},
        {"method": "isdml"},
        {"seed": 1},
        {"preset": "default"},
        {"scored": False},
        {"settings": {"epochs": 3}},
        {"settings": {"lr": 1e-3}},
        {"settings": {"labels_per_class": 3}},
        {"settings": {"components": 32}},
        {"settings": {"side": 96}},
        {"settings": {"pretrain_epochs": 1}},
    ],
)
def test_a_key_changes_with_any_setting(changes: dict) -> None:
    assert changed_key(dataclasses.replace(BIRDS, **changes)) != changed_key()


def test_a_key_changes_with_data_and_weights_but_not_the_fit() -> None:
    keys = [changed_key(), changed_key(data="e"), changed_key(weights="v"), changed_key(weights=None)]
    assert len({*keys}) == 4
    assert len({key.partition("-")[0] for key in keys}) == 1


def test_the_version_of_data_is_that_of_its_photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_birds(tmp_path / "first", monkeypatch)
    version = data_version("cub200", first)
    assert version == data_version("cub200", write_birds(tmp_path / "second", monkeypatch))
    third = write_birds(tmp_path / "third", monkeypatch)
    photo = max(path for path in third.rglob("*") if path.suffix in (".jpg", ".jpeg", ".png"))
    photo.write_bytes(photo.read_bytes() + b"\0")
    assert data_version("cub200", third) != version
    assert data_version("digits", None) == data_version("digits", tmp_path) == "built in"


def test_weights_are_told_apart_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    birds, keys = write_birds(tmp_path / "birds", monkeypatch), []
    for number, content in enumerate((b"one", b"two", b"one")):
        weights = tmp_path / f"{number}.npz"
        weights.write_bytes(content)
        keys.append(Place(tmp_path, birds, weights).key(Cell("cub200", "lrml", 0)))
    assert keys[0] == keys[2] != keys[1]
    digits = {Place(tmp_path, weights=tmp_path / f"{n}.npz").key(Cell("digits", "lrml", 0)) for n in range(2)}
    assert len(digits) == 1  # they are not used there


def test_the_version_of_the_code_is_that_of_the_sources() -> None:
    import semimetric as package

    version, _, digest = code_version().partition("+")
    assert version == package.__version__
    assert len(digest) == 8
    assert code_version() == code_version.__wrapped__()


def test_the_committed_results_are_those_of_their_commands() -> None:
    """What a record says of itself gives its key and its plan: with --no-run the tables find all of them."""
    records = list(Records(RECORDS).all())
    assert len(records) > 100
    for record in records:
        known = {name: record[name] for name in ("dataset", "method", "seed", "preset", "settings")}
        cell = Cell(**known, scored="final" in record)
        assert record["command"] == cell.command()
        assert record["key"].partition("-")[0] == fit_key(cell, cell.plan()), record["command"]
        assert Plan.from_dict(record["plan"]).training == cell.plan().training
