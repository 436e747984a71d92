"""Examples that are added to a run without training, and what a run writes of its own examples."""

from __future__ import annotations

import csv
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command import semimetric
from helpers.frozen import SEEN, frozen_network
from helpers.own_photos import COLOURS, write_folder, write_photo

import semimetric as sm
from semimetric.core.errors import InputError, RunError
from semimetric.data import read_collection
from semimetric.graph import Posteriors
from semimetric.model.added import ADDED
from semimetric.model.fitted import FittedModel
from semimetric.model.folder import load_run
from semimetric.serve.add import copies_among
from semimetric.training import Run

OPTIONS = ("--epochs", 3, "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with photographs, and a run on them."""
    home = tmp_path_factory.mktemp("trained")
    write_folder(home / "photos", 4, 9)
    with frozen_network(home) as network:
        assert semimetric("fit", home / "photos", "-o", home / "run", *network, *OPTIONS).code == 0
        yield home


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


@pytest.fixture
def new(tmp_path: Path, trained: Path) -> Path:
    """Two photographs of known classes, one of them labelled, one of a new class, and a copy of an old one."""
    write_photo(tmp_path / "new" / "red" / "a.png", COLOURS["red"], 500)
    write_photo(tmp_path / "new" / "unlabelled" / "b.png", COLOURS["blue"], 501)
    write_photo(tmp_path / "new" / "violet" / "c.png", (200, 0, 200), 502)
    shutil.copy(trained / "photos" / "red" / "photo 0.jpg", tmp_path / "new" / "again.jpg")
    return tmp_path / "new"


def test_examples_are_added_found_and_predicted(run: Path, new: Path) -> None:
    before = load_run(run).fitted
    done = semimetric("add", run, new)
    assert done.code == 0, done.err
    assert f"3 examples added to {run}, which has 24 now; copies left out: 1" in done.out
    assert "new to the run: violet. The embedding has not learned this class" in done.out
    after = load_run(run).fitted
    named = [str(new / name) for name in ("red/a.png", "unlabelled/b.png", "violet/c.png")]
    assert sorted(after.examples.names[21:]) == sorted(named)
    assert torch.equal(after.embeddings[:21], before.embeddings)
    assert torch.equal(after.posteriors.shares[:21, :3], before.posteriors.shares)
    assert after.examples.classes == (*before.examples.classes, "violet")
    told = dict(zip(after.examples.names, after.labels.tolist(), strict=True))
    classes = after.examples.classes
    numbers = [told[name] for name in named]
    assert [classes[number] if number >= 0 else None for number in numbers] == ["red", None, "violet"]
    torch.testing.assert_close(after.posteriors.shares.sum(1), torch.ones(24).double())
    found = semimetric("search", run, new / "violet" / "c.png", "-k", 2, "--json").json()
    (hits,) = found["hits"].values()
    assert [hits[0]["name"], hits[0]["label"]] == [named[2], "violet"]
    assert after.labelled_inputs is not None
    assert before.labelled_inputs is not None
    assert torch.equal(after.labelled_inputs[:12], before.labelled_inputs)
    assert len(after.labelled_inputs) == 14
    assert semimetric("evaluate", run, new, "--json").code == 0
    model = sm.load(run)
    assert list(model.predict([new / "violet" / "c.png", new / "red" / "a.png"])) == ["violet", "red"]
    held = semimetric("info", run, "--json").json()["data"]
    assert (held["examples"], held["added"], held["classes"]["violet"]) == (24, 3, 1)
    assert "24 examples (3 of them added later), " in semimetric("info", run).out


def test_added_again_there_is_nothing_to_add(run: Path, new: Path) -> None:
    first = sm.add_examples(run, new)
    assert (len(first.names), len(first.copies), first.examples) == (3, 1, 24)
    content = (run / ADDED).read_bytes()
    assert "all 4 examples" in semimetric("add", run, new).sentence()
    assert (run / ADDED).read_bytes() == content
    write_photo(new / "d.png", COLOURS["green"], 503)
    again = sm.add_examples(run, new)
    assert (again.names, len(again.copies), again.examples) == ((str(new / "d.png"),), 4, 25)
    assert len(load_run(run).fitted.labels) == 25


def test_a_changed_file_of_the_run_is_no_new_example(trained: Path, run: Path) -> None:
    path = trained / "photos" / "red" / "photo 0.jpg"
    content = path.read_bytes()
    write_photo(path, (9, 99, 9), 7)
    try:
        assert "has an example named 'red/photo 0.jpg'" in semimetric("add", run, trained / "photos").sentence()
    finally:
        path.write_bytes(content)
    assert not (run / ADDED).exists()


def test_the_network_sees_new_photographs_alone(run: Path, new: Path) -> None:
    write_photo(new / "unseen.png", (7, 8, 9), 77)
    sm.add_examples(run, new, device="cpu")
    seen = SEEN[0]
    semimetric("predict", run, new, "-o", new / "labels.csv")
    semimetric("search", run, new / "unseen.png")
    assert SEEN[0] == seen
    semimetric("search", run, new / "unseen.png", "--no-cache")
    assert SEEN[0] == seen + 1


def test_the_index_has_all_examples(run: Path, new: Path, tmp_path: Path) -> None:
    place = tmp_path / "photos.npy"
    assert semimetric("index", run, "--to", place).code == 0
    assert "of another run" in semimetric("add", run, new, "--index", _of_another(tmp_path)).sentence()
    assert not (run / ADDED).exists()
    assert "has all of them" in semimetric("add", run, new, "--index", place).out
    found = semimetric("search", run, new / "violet" / "c.png", "-k", 1, "--index", place, "--json").json()
    assert next(iter(found["hits"].values()))[0]["label"] == "violet"


def _of_another(folder: Path) -> Path:
    place = folder / "other.npy"
    np.save(place, np.ones((21, 24), dtype=np.float32))
    return place


def test_a_run_that_was_trained_again_refuses_what_was_added_before(run: Path, new: Path) -> None:
    sm.add_examples(run, new)
    opened = Run.open(run)
    held, state = opened.read_tensors(ADDED)
    opened.write_tensors(ADDED, held, state | {"model": "other"})
    with pytest.raises(RunError, match="belongs to another model"):
        load_run(run)


def test_labels_are_written_and_read(trained: Path, run: Path, new: Path, tmp_path: Path) -> None:
    sm.add_examples(run, new)
    out = tmp_path / "labels.csv"
    done = semimetric("labels", run, "-o", out)
    assert "24 examples, 14 with a given label" in done.out
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["name", "label", "source", "predicted", "confidence"]
    assert all(row["predicted"] == row["label"] and float(row["confidence"]) == 1 for row in rows if row["label"])
    assert {row["predicted"] for row in rows} <= {"red", "green", "blue", "violet"}
    listed = read_collection(trained / "photos", out)
    fitted = load_run(run).fitted
    given = {name: None if n < 0 else fitted.examples.classes[n] for name, n in _labelled(fitted)}
    assert dict(zip(listed.names, listed.labels, strict=True)) == given
    assert "exists" in semimetric("labels", run, "-o", out).sentence()
    assert semimetric("labels", run).out == out.read_text()
    shown = semimetric("labels", run, "--json").json()
    assert (shown["labelled"], shown["labels"][0]["name"]) == (14, rows[0]["name"])


def _labelled(fitted: FittedModel) -> list[tuple[str, int]]:
    return list(zip(fitted.examples.names, fitted.labels.tolist(), strict=True))


def test_copies_are_found_up_to_rounding() -> None:
    known = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()
    new = torch.stack([known[2] * (1 + 1e-7), known[1] + 0.1, known[1] + 0.1, known[3] + 0.2])
    assert copies_among(known, new).tolist() == [True, False, True, False]


def test_rows_of_a_table_are_added(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(30, 3)) + 4 * (np.arange(30)[:, None] % 2)
    lines = [f"{a},{b},{c},{'xy'[n % 2] if n < 10 else ''}" for n, (a, b, c) in enumerate(features)]
    (tmp_path / "old.csv").write_text("\n".join(["a,b,c,label", *lines[:25]]) + "\n")
    (tmp_path / "new.csv").write_text("\n".join(["a,b,c,label", *lines[23:]]) + "\n")
    run = tmp_path / "run"
    assert semimetric("fit", tmp_path / "old.csv", "-o", run, *OPTIONS).code == 0
    added = sm.add_examples(run, tmp_path / "new.csv")
    assert (len(added.names), len(added.copies), added.examples) == (5, 2, 30)
    assert all(name.startswith("new.csv: ") for name in added.names)
    with pytest.raises(InputError, match="of no class of the run: it has no classes"):
        _without_classes(run).grown(["z"], torch.zeros(1, 64).double(), ["new"])


def _without_classes(run: Path) -> FittedModel:
    fitted = load_run(run).fitted
    count = len(fitted.labels)
    none = Posteriors(torch.empty(0, dtype=torch.int64), torch.empty(count, 0), torch.zeros(count))
    return dataclasses.replace(fitted, posteriors=none, examples=dataclasses.replace(fitted.examples, classes=()))
