"""From photographs to search, as docs/own-data.md and docs/suggest.md tell it: each step is one command line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command import Done, semimetric
from helpers.frozen import SEEN, frozen_network
from helpers.own_photos import COLOURS, write_photo

KINDS = COLOURS | {"yellow": (220, 210, 30)}
"""Nobody has labelled a yellow one yet."""


def ok(*words: object) -> Done:
    """A command that must end well."""
    done = semimetric(*words)
    assert done.code == 0, done.err
    return done


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def label_by_eye(path: Path) -> None:
    """Fill in the empty labels of a list; the names of the photographs tell the colour."""
    rows = rows_of(path)
    for row in rows:
        row["label"] = row["label"] or Path(row["name"]).name.split()[0]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """Photographs of three kinds with six labels each, unlabelled ones of four kinds, and new ones of all four."""
    home = tmp_path_factory.mktemp("story")
    for place, (name, colour) in enumerate(KINDS.items()):
        for number in range(6 if name in COLOURS else 0):
            write_photo(home / "photos" / name / f"{name} {number}.png", colour, 100 * place + number)
        for number in range(8):
            write_photo(home / "photos" / "unlabelled" / f"{name} {number}.png", colour, 1000 + 100 * place + number)
        for number in range(5):
            write_photo(home / "test" / name / f"{name} {number}.png", colour, 2000 + 100 * place + number)
        write_photo(home / "more" / f"{name} new.png", colour, 3000 + place)
    with frozen_network(home) as network:
        yield home, network


def test_photographs_fit_evaluate_suggest_label_refit_add_search(
    home: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, network = home
    monkeypatch.setenv("SEMIMETRIC_CACHE", str(folder / "cache"))
    monkeypatch.chdir(folder)

    first = ok("fit", "photos", "-o", "run", *network, "--epochs", 6, "--device", "cpu")
    assert first.out.startswith("50 photographs: 18 labelled, 32 unlabelled.\n3 classes with 6 labels each.\n")
    assert "of 3 held-out labels were predicted correctly" in first.out

    known = ok("evaluate", "run", "test", "--json").json()
    assert known["scores"]["run"]["accuracy"] == 1.0
    assert known["unknown"] == ["yellow"]

    told = ok("suggest", "run", "-n", 6, "-o", "labels.csv").out
    assert "note: 36 % have a label; random ones help about as much from here on" in told
    assert f"next: semimetric fit {folder / 'photos'} --labels labels.csv --from run --out NEW_RUN" in told
    listed = rows_of(Path("labels.csv"))
    chosen = [row["name"] for row in listed if row["source"] == "suggested"]
    assert len(chosen) == 6
    assert [row["label"] for row in listed].count("") == 6
    assert all((Path("photos") / name).exists() for name in chosen)
    assert any("yellow" in name for name in chosen), "the kind without a label is found"
    label_by_eye(Path("labels.csv"))

    SEEN[0] = 0
    again = ok("fit", "photos", "--labels", "labels.csv", "--from", "run", "-o", "second", "--device", "cpu")
    assert SEEN[0] == 0, "the frozen network sees no old photograph"
    assert again.out.startswith("50 photographs: 24 labelled, 26 unlabelled.\n4 classes")
    better = ok("evaluate", "second", "test", "--json").json()
    assert better["scores"]["run"]["accuracy"] == 1.0
    assert better["unknown"] == []

    assert "4 examples added to second, which has 54 now" in ok("add", "second", "more").out
    found = ok("search", "second", "test/yellow/yellow 0.png", "-k", 10, "--json").json()["hits"]
    (hits,) = found.values()
    assert {hit["label"] for hit in hits[:5]} == {"yellow"}
    assert "yellow new.png" in [Path(hit["name"]).name for hit in hits]

    ok("labels", "second", "-o", "kept.csv")
    kept = rows_of(Path("kept.csv"))
    assert sorted(row["name"] for row in kept if row["source"] == "suggested") == sorted(chosen)
    cold = ok("fit", "photos", "--labels", "kept.csv", "-o", "cold", *network, "--epochs", 6, "--device", "cpu")
    assert "of 3 held-out labels" in cold.out, "a fifth of the labels that were not suggested"
    assert "6 suggested labels were not held out: they are no random sample. Too few others remain" in cold.out
