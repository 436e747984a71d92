"""Tables that changed after people labelled them, files of a wrong format under the right name, and forged runs."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import random
import shutil
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from helpers.command import Done, semimetric
from helpers.damage import Tally
from helpers.kinds import LOOKS, PICTURES, called
from helpers.sealed import reseal
from PIL import Image

from semimetric.data import read_collection
from semimetric.model.folder import load_run
from semimetric.serve.book import labels_file
from semimetric.serve.labels import given_labels
from semimetric.serve.page.again import learn_again
from semimetric.serve.page.desk import Desk

Row = tuple[str, int, float, str]
"""Name, a, b and the label that the table has. People label by a and b."""

ROWS, GIVEN = 36, 8


def label_of(a: float, b: float) -> str:
    """What people call a row with these values."""
    return f"{'xy'[round(a)]} {b:.4f}"


def make_tables(home: Path) -> Path:
    """Runs on a table with ids and on one without, each with a book of labels of people: one per row, and two."""
    if (home / "plain").exists():
        return home
    for name in ("ids", "plain"):
        draw = random.Random(name)
        rows = [(f"r{n}", n % 2, round(draw.random(), 4), "xy"[n % 2] if n < GIVEN else "") for n in range(ROWS)]
        (home / name).mkdir()
        write_rows(home / name / "t.csv", rows, name == "ids")
        done = semimetric("fit", home / name / "t.csv", "--method", "lrml", "-o", home / name / "run")
        assert done.code == 0, done.err
        for book, words in (("own", label_of), ("two", lambda a, b: "xy"[a])):
            desk = Desk(home / name / "run")
            for n in range(GIVEN, 2 * GIVEN):
                desk.book.label([n], words(*rows[n][1:3]), "someone")
            desk.book.close()
            labels_file(home / name / "run").rename(home / name / f"{book}.sqlite")
        (home / name / "rows.json").write_text(json.dumps(rows))
    return home


def write_rows(path: Path, rows: list[Row], has_ids: bool) -> None:
    """A table of these rows."""
    lines = ["id,a,b,label" if has_ids else "a,b,label"]
    lines += [f"{name},{a},{b!r},{label}" if has_ids else f"{a},{b!r},{label}" for name, a, b, label in rows]
    path.write_text("\n".join(lines) + "\n")


def changed_rows(rows: list[Row], draw: random.Random) -> list[Row]:
    """The rows after somebody edited the table."""
    rows = list(rows)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(rows))
        name, a, b, label = rows[place]
        what = draw.choice(
            ["insert", "insert first", "shuffle", "sort", "edit", "delete", "copy", "swap", "copy with a name"]
        )
        if what == "shuffle":
            draw.shuffle(rows)
        elif what == "sort":
            rows.sort(key=lambda row: row[2])
        elif what == "delete" and len(rows) > ROWS // 2:
            del rows[place]
        elif what == "edit":
            rows[place] = name, 1 - a, round(draw.random(), 4), "yx"["xy".index(label)] if label else ""
        elif what == "swap":
            other = draw.randrange(len(rows))
            (one, *values), (two, *values_of_other) = rows[place], rows[other]
            rows[place], rows[other] = (two, *values), (one, *values_of_other)  # type: ignore[assignment]
        else:
            new = (f"new{draw.random()}", draw.randrange(2), round(draw.random(), 4), "")
            new = new if what.startswith("insert") else (new[0] if "name" in what else f"{name} 2", a, b, label)
            rows.insert(0 if what == "insert first" else place, new)
    return rows


def change_tables(home: Path, folder: Path, count: int, seed: int = 0) -> Tally:
    """Labels of people on a table that has changed: never on a row with other values, and none lost in silence."""
    tally, draw = Tally(), random.Random(seed)
    for number in range(count):
        name = draw.choice(["ids", "plain"])
        place = folder / "tables"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(home / name, place)
        first: list[Row] = [tuple(row) for row in json.loads((place / "rows.json").read_text())]
        rows = changed_rows(first, draw)
        write_rows(place / "t.csv", rows, name == "ids")
        acts = {"read": _read, "fit": _fit, "learn": _learn, "labels": _labels}
        act = draw.choice(["read", "read", "read", "fit", "learn", "labels"])
        tally.check(f"table {name} {act}", f"#{number}", partial(acts[act], place, first, rows))
    return tally


def _read(place: Path, first: list[Row], rows: list[Row]) -> Done:
    found = read_collection(place / "t.csv", place / "own.sqlite")
    assert found.features is not None
    given = {label_of(a, b) for _, a, b, _ in first[GIVEN : 2 * GIVEN]}
    used = set()
    for values, label in zip(found.features.tolist(), found.labels, strict=True):
        if label is not None and len(label) > 1:
            assert label == label_of(*values), f"{label} is on the row {values}"
            used.add(label)
    notes = " ".join(found.notes)
    now = [label_of(a, b) for _, a, b, _ in rows]
    for label in given - used:
        assert now.count(label) != 1, f"{label} is not on its row"
        assert f"{len(given - used)} label" in notes, f"{label} was lost in silence: {notes}"
    return Done(0, "", "")


def _right(run: Path, place: Path) -> Done:
    """A run whose labels are those of the values that it was trained on, as far as the table has them."""
    fitted, table = load_run(run, "cpu").fitted, read_collection(place / "t.csv")
    assert table.features is not None
    values = {table.digest(row): features for row, features in enumerate(table.features.tolist())}
    pairs = [*zip(given_labels(fitted), fitted.examples.digests, strict=True)]
    assert {digest for _, digest in pairs} & values.keys(), "it was trained on other rows"
    wrong = [label for label, digest in pairs if label and digest in values and label != "xy"[round(values[digest][0])]]
    assert not wrong, f"labels on rows with other values: {wrong}"
    return Done(0, "", "")


def _fit(place: Path, first: list[Row], rows: list[Row]) -> Done:
    words = ("fit", place / "t.csv", "--labels", place / "two.sqlite", "--method", "lrml", "-o", place / "new")
    done = semimetric(*words)
    return done if done.code else _right(place / "new", place)


def _learn(place: Path, first: list[Row], rows: list[Row]) -> Done:
    shutil.copy(place / "two.sqlite", labels_file(place / "run"))
    desk = Desk(place / "run", source=place / "t.csv")

    def learn() -> None:
        learn_again(
            place / "run",
            desk.book.labels,
            place / "new",
            None,
            place / "t.csv",
            judge=False,
            digests=desk.book.evidence(),
        )

    try:
        done = called(learn)
    finally:
        desk.book.close()
    return done if done.code else _right(place / "new", place)


def _labels(place: Path, first: list[Row], rows: list[Row]) -> Done:
    shutil.copy(place / "two.sqlite", labels_file(place / "run"))
    listed = semimetric("labels", place / "run", "--json").json()["labels"]
    expected = ["xy"[row[1]] if number < 2 * GIVEN else "" for number, row in enumerate(first)]
    assert [entry["label"] for entry in listed] == expected, "the labels of the run changed with the table"
    return Done(0, "", "")


class Bomb:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def contents_of(home: Path, bomb: Path) -> dict[str, bytes]:
    """Files of many formats."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (path, label)")
        database = db.serialize()
    packed, tarred, pictures = io.BytesIO(), io.BytesIO(), {}
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.png", b"x")
    with tarfile.open(fileobj=tarred, mode="w") as tar:
        tar.add(home / "new.csv", "new.csv")
    for kind in ("PNG", "JPEG", "ICO", "PCX"):
        written = io.BytesIO()
        Image.new("RGB", (16, 16), "red").save(written, kind)
        pictures[kind] = written.getvalue()
    return pictures | {
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n",
        "pdf": b"%PDF-1.4\n1 0 obj\n<< >>\nendobj\ntrailer\n<< >>\n%%EOF\n",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"><rect width="8" height="8"/></svg>',
        "text": b"notes of somebody\n",
        "nothing": b"",
        "zip": packed.getvalue(),
        "tar": tarred.getvalue(),
        "elf": b"\x7fELF" + bytes(200),
        "pickle": pickle.dumps(Bomb(bomb)),
        "pickle in npy": _pickled_array(bomb),
        "sqlite": database,
        "csv": (home / "new.csv").read_bytes(),
        "tsv": (home / "new.tsv").read_bytes(),
        "npy": (home / "new.npy").read_bytes(),
        "npz": (home / "wine.npz").read_bytes(),
        "list": (home / "list.csv").read_bytes(),
        "toml": (home / "settings.toml").read_bytes(),
        "json": b'{"a": [1, 2]}',
        "book": (home / "book.sqlite").read_bytes(),
        "safetensors": (home / "net" / "model.safetensors").read_bytes(),
    }


def _pickled_array(bomb: Path) -> bytes:
    written = io.BytesIO()
    np.save(written, np.array([Bomb(bomb)], dtype=object), allow_pickle=True)
    return written.getvalue()


RIGHT: dict[str, tuple[str, ...]] = {
    ".csv": ("csv", "tsv", "list", "book", "text"),
    ".tsv": ("tsv", "csv", "list", "book", "text"),
    ".npy": ("npy",),
    ".npz": ("npz",),
    ".toml": ("toml", "nothing", "text"),
    ".sqlite": ("book", "list"),
    ".txt": ("book", "list"),
    ".json": ("nothing",),
    ".safetensors": ("safetensors",),
    ".tar": ("tar",),
} | {f".{suffix}": ("PNG", "JPEG") for suffix in PICTURES}
"""Contents that may be read under a name; labels are recognised by what a file holds."""

TABLES, LISTS = (".csv", ".tsv", ".npy", ".npz", ".parquet"), (".csv", ".tsv", ".sqlite", ".txt")
PHOTOS = tuple(f".{suffix}" for suffix in PICTURES)
Asked = Callable[[Path, Path, Path], tuple[object, ...]]
USES: list[tuple[tuple[str, ...], Asked]] = [
    (PHOTOS, lambda home, path, out: ("predict", home / "looks", path)),
    (PHOTOS, lambda home, path, out: ("search", home / "looks", path, "-k", 1)),
    (PHOTOS, lambda home, path, out: ("embed", home / "looks", path.parent, "-o", out / "e.csv")),
    (TABLES, lambda home, path, out: ("embed", home / "run", path, "-o", out / "e.csv")),
    (TABLES, lambda home, path, out: ("fit", path, "--method", "lrml", "-o", out / "run")),
    (LISTS, lambda home, path, out: ("fit", home / "photos", "--labels", path, *LOOKS, "-o", out / "run")),
    ((".csv", ".sqlite"), lambda home, path, out: ("labels", out / "looks", "--import", path)),
    ((".npy", ".faiss", ".db"), lambda home, path, out: ("search", home / "run", home / "new.npy", "--index", path)),
    ((".toml", ".json"), lambda home, path, out: ("fit", home / "wine.npz", "--config", path, "--show-settings")),
    (
        (".pth", ".npz", ".safetensors"),
        lambda home, path, out: ("fit", home / "photos", "--encoder", "resnet18", "--weights", path, "-o", out / "run"),
    ),
    ((".tar",), lambda home, path, out: ("embed", home / "looks", path, "-o", out / "e.csv")),
]


def mix_formats(home: Path, folder: Path, count: int, seed: int = 0) -> Tally:
    """Files of a wrong format under the right name: a sentence, and nothing in them is run."""
    tally, draw, bomb = Tally(), random.Random(seed), folder / "exploded"
    contents, program = contents_of(home, bomb), folder / "bin" / "gs"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nmkdir '{bomb}'\n")
    program.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{program.parent}{os.pathsep}{before}"
    try:
        for number in range(count):
            suffixes, asked = draw.choice(USES)
            suffix, kind = draw.choice(suffixes), draw.choice(list(contents))
            place = folder / "mixed"
            shutil.rmtree(place, ignore_errors=True)
            (place / "in").mkdir(parents=True)
            shutil.copytree(home / "looks", place / "looks")
            path = place / "in" / f"x{suffix}"
            path.write_bytes(contents[kind])
            words = asked(home, path, place)
            what = f"#{number} {kind} as {suffix} to {words[0]}"
            done = tally.check(f"format {suffix}", what, lambda words=words: semimetric(*words))  # type: ignore[misc]
            if bomb.exists():
                tally.wrong.append(f"format {what}: a program in it was run")
                bomb.rmdir()
            if done is not None and done.code == 0 and kind not in RIGHT.get(suffix, ()):
                tally.wrong.append(f"format {what}: taken without a word {done.out[:200]}")
    finally:
        os.environ["PATH"] = before
    return tally


FORGERIES: list[Any] = [
    *(None, True, -1, 0, 10**30, 1e308, "", "x" * 500, "\x1b[31m", "../x", [], {}, [[]], {"a": {}}, float("nan")),
    *("\ud800", ["\ud800"], ["a"], [1, 2], {"a": 1}, [{"a": [1]}], "0" * 64, "f" * 63, "1e5", [None], "\u202etxt.exe"),
]
ADDED = ("dataset", "from", "kind", "plan", "format", "names", "guards", "weights", "source", "__class__", "")


def forged(value: Any, draw: random.Random) -> Any:
    """A JSON value with one to three other values, fewer fields, more fields, or longer and shorter lists."""
    value = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        spot = value
        while isinstance(spot, dict | list) and spot:
            key = draw.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))
            if isinstance(spot[key], dict | list) and spot[key] and draw.random() < 0.7:
                spot = spot[key]
                continue
            how = draw.random()
            if isinstance(spot, dict) and how < 0.2:
                spot[draw.choice(ADDED)] = copy.deepcopy(draw.choice(FORGERIES))
            elif how < 0.3:
                del spot[key]
            elif isinstance(spot, list) and how < 0.4:
                spot.append(copy.deepcopy(spot[key]))
            else:
                spot[key] = copy.deepcopy(draw.choice(FORGERIES))
            break
    return value


def forge_runs(home: Path, folder: Path, count: int, seed: int = 0) -> Tally:
    """Runs whose JSON a stranger has rewritten and sealed, or whose manifest: a sentence, or an answer."""
    tally, draw = Tally(), random.Random(seed)
    for number in range(count):
        source = draw.choice(["net", "run", "looks", "grown"])
        run = folder / "forged"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(home / source, run)
        path = draw.choice(sorted(run.glob("*.json")))
        value = forged(json.loads(path.read_text()), draw)
        path.write_text(json.dumps(value))
        if path.name != "manifest.json":
            reseal(run)
        else:
            _seal_again(path)
        out, new = folder / "forged.out", home / ("new.png" if source == "looks" else "new.npy")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        commands: list[tuple[object, ...]] = [
            *(("info", run), ("verify", run), ("suggest", run, "-n", 2), ("labels", run, "-o", out / "l.csv")),
            *(("search", run, new, "-k", 1), ("predict", run, new), ("embed", run, new, "-o", out / "e.npy")),
            *(("evaluate", run), ("evaluate", run, home / "wine.npz"), ("compare", run, home / "net", "-o", out / "c")),
            *(("add", run, new), ("index", run, "--to", out / "i.npy"), ("report", run, "-o", out / "r")),
            ("fit", home / "wine.npz", "--from", run, "-o", out / "again"),
            ("export", run, "--onnx", "-o", out / "m.onnx"),
            *(("labels", run, "--import", home / "labels.csv"), ("page", run)),
        ]  # fmt: skip
        words = draw.choice(commands)
        act = partial(called, partial(_look, run)) if words[0] == "page" else partial(semimetric, *words)
        tally.check(f"forged {path.name}", f"#{number} {source} {words[0]}", act)
        labels_file(run).unlink(missing_ok=True)
    return tally


def _look(run: Path) -> None:
    desk = Desk(run)
    try:
        desk.facts()
        desk.examples([0, 1])
        desk.columns()
    finally:
        desk.book.close()


def _seal_again(path: Path) -> None:
    """Let a manifest fit its own checksum again."""
    from semimetric.core.manifest import _digest_of

    value = json.loads(path.read_text())
    if isinstance(value, dict) and isinstance(value.get("body"), dict):
        with contextlib.suppress(ValueError, TypeError):
            value["sha256"] = _digest_of(value["body"])
    path.write_text(json.dumps(value))
