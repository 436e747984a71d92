"""``semimetric reproduce``: whole runs on digits."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from helpers.command import semimetric

from semimetric.paper.experiments import TABLES
from semimetric.paper.records import Records, rounded
from semimetric.paper.request import TARGETS

QUICK = ["reproduce", "table4", "--quick", "--device", "cpu", "--out"]


def records_in(out: Path) -> list[dict]:
    return sorted(Records(out / "records").all(), key=lambda record: record["command"])


def test_a_table_is_run_and_written_and_its_rows_can_be_repeated_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = semimetric(*QUICK, out)
    assert first.code == 0, first.err
    assert "2 fits run, 0 results reused." in first.out
    files = {path.name: path.read_text() for path in out.iterdir() if path.is_file()}
    assert {*files} == {"table4.json", "table4.md", "table4.tex"}
    assert all(str(out / name) in first.out for name in files)
    table = json.loads(files["table4.json"])
    assert [(line["title"], line["dataset"], line["seeds"]) for line in table["lines"]] == [
        ("w/o orth", "digits", [0]),
        ("w/ orth", "digits", [0]),
    ]
    records = records_in(out)
    for line in table["lines"]:
        (record,) = (record for record in records if [record["command"]] == line["commands"])
        assert f"    {record['command']}\n" in files["table4.md"]
        assert f"| {line['title']} | {100 * record['final']['nmi']:.1f} | " in files["table4.md"]
        assert f"{line['title']} (paper's protocol) & {100 * record['final']['nmi']:.1f} & " in files["table4.tex"]
        assert record["best_epoch"] <= record["epochs"] == 1

    again = semimetric(*QUICK, out, "--json").json()
    assert (again["ran"], again["reused"], again["failed"]) == (0, 2, {})
    assert {path: Path(path).read_text() for path in again["files"]} == {
        str(out / name): text for name, text in files.items()
    }
    assert records_in(out) == records
    assert semimetric(*QUICK, out, "--dry-run").out == "2 results found, 0 fits to run.\n"

    for record in records[:1]:
        words = shlex.split(record["command"].replace("RUN", str(tmp_path / record["key"])))[1:]
        alone = semimetric(*words, "--device", "cpu", "--json").json()
        for name in ("initial", "final"):
            assert rounded(alone[name]) == pytest.approx(record[name], rel=0, abs=1e-9)
        assert alone["best_epoch"] == record["best_epoch"]


def test_a_dry_run_lists_commands_and_writes_nothing(tmp_path: Path) -> None:
    said = semimetric(*QUICK, tmp_path / "out", "--dry-run").out.splitlines()
    assert said[0] == "0 results found, 2 fits to run."
    assert [line.partition(" --epochs")[0] for line in said[1:]] == [
        "semimetric fit --dataset digits --method affinity-triplets --preset paper --seed 0"
    ] * 2
    assert "--no-orthogonal" in said[1]
    assert semimetric(*QUICK, tmp_path / "out", "--dry-run", "--json").json() == {"found": 0, "missing": said[1:]}
    more = semimetric(*QUICK, tmp_path / "out", "--dry-run", "--seeds", "0,1, 2", "--json").json()
    assert len(more["missing"]) == 6
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "target must be one of"),
        (["table1", "--datasets", "mnits"], "Did you mean 'mnist'"),
        (["table1", "--methods", "lrm"], "method must be one of"),
        (["table1", "--seeds", "a,b"], "--seeds must be whole numbers separated by commas, such as 0,1,2, got 'a,b'"),
        (["table1", "--quick", "--seeds", "-1"], "seed must be between 0"),
        (["table1", "--reuse", "some"], "reuse must be one of same-code, any-code, none"),
        (["table2", "--datasets", "mnist"], "table2 is of cub200, cars196"),
        (["table1", "--quick", "--device", "gpu"], "device"),
        (["table1", "--datasets", "mnist,cifar10"], "the data of cifar10, mnist was not found"),
        (["table5", "--quick", "--datasets", "cub200"], "the data of cub200 was not found"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.delenv("SEMIMETRIC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert message in semimetric("reproduce", *arguments, "--out", tmp_path / "out").sentence()
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_of_results_is_named_and_kept(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "digits.json").write_text("{")
    assert "digits.json cannot be read" in semimetric(*QUICK, tmp_path).sentence()
    assert (tmp_path / "records" / "digits.json").read_text() == "{"


def test_a_fit_that_fails_is_named_and_the_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TABLES["table4"]
    rows = [dataclasses.replace(row, settings=row.settings | {"epochs": 0}) for row in whole.rows]
    bad = dataclasses.replace(rows[0], settings=rows[0].settings | {"k": 5000})
    monkeypatch.setitem(TABLES, "table4", dataclasses.replace(whole, rows=(bad, rows[1])))
    done = semimetric(*QUICK, tmp_path)
    assert done.code == 1
    assert "1 fit run, 0 results reused." in done.out
    (said,) = (line for line in done.out.splitlines() if line.startswith("failed: "))
    assert said.startswith("failed: digits affinity-triplets paper, epochs 0, k 5000, orthogonal False, ")
    assert "InputError: k must be below the number of examples in the graph" in said
    (record,) = records_in(tmp_path)
    assert record["settings"] == {"epochs": 0, "patience": 6}
    assert "| w/ orth | " in (tmp_path / "table4.md").read_text()
    assert "w/o orth" not in (tmp_path / "table4.md").read_text()
    monkeypatch.setitem(TABLES, "table4", dataclasses.replace(whole, rows=(rows[1],)))
    again = semimetric(*QUICK, tmp_path, "--json").json()
    assert (again["ran"], again["reused"], again["failed"]) == (0, 1, {})


def test_tables_are_written_from_results_alone(tmp_path: Path) -> None:
    """Those that are committed, without their data."""
    committed = Path(__file__).parents[2] / "benchmarks" / "results" / "paper"
    (tmp_path / "records").symlink_to(committed / "records")
    done = semimetric("reproduce", "table1", "table4", "stages", "--no-run", "--out", tmp_path, "--json").json()
    assert (done["ran"], done["failed"]) == (0, {})
    assert len(done["files"]) == 9
    for name in ("table1.md", "table4.tex", "stages.json"):
        assert (tmp_path / name).read_text() == (committed / name).read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_table_and_figure_in_a_quick_look(tmp_path: Path) -> None:
    done = semimetric("reproduce", "all", "--quick", "--device", "cpu", "--workers", 2, "--out", tmp_path, "--json")
    outcome = done.json()
    assert outcome["failed"] == {}
    names = {Path(path).name for path in outcome["files"]}
    assert {f"{name}.json" for name in TARGETS} | {f"{name}.md" for name in TARGETS} <= names
    pictures = {"alpha", "convergence", "tsne", "retrieval", "complexity"}
    assert {f"{name}.png" for name in pictures} <= names
    again = semimetric("reproduce", "all", "--quick", "--device", "cpu", "--out", tmp_path, "--json").json()
    assert (again["ran"], again["reused"]) == (0, outcome["ran"])
