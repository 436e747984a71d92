"""Damage to files that commands read beside plain tables: photographs, Parquet, indexes, studies, lists, weights."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from helpers.command import Done, semimetric
from helpers.damage import Tally, damaged, with_other_value
from helpers.own_photos import COLOURS, write_folder, write_photo
from helpers.sealed import reseal

from semimetric.core.errors import SemimetricError
from semimetric.data.label_book import BookFile
from semimetric.reporting.facts import read_facts
from semimetric.serve.book import labels_file
from semimetric.serve.page.desk import Desk

PICTURES = ("jpg", "png", "webp", "gif", "bmp", "tif")
LOOKS = ("--encoder", "small-cnn", "--side", 16, "--epochs", 1, "--passes", 1, "--threads", 1)
TUNE = ("--method", "lrml", "--trials", 2, "--threads", 1)
Attempt = Callable[[random.Random, Path], Done]


def make_kinds(home: Path) -> Path:
    """A run on photographs, a run with added examples, and a file of each further kind; ``home`` is of ``damage``."""
    if (home / "book.sqlite").exists():
        return home
    write_folder(home / "photos", 3, 6)
    for suffix in PICTURES:
        write_photo(home / f"new.{suffix}", COLOURS["red"], 7)
    assert semimetric("fit", home / "photos", *LOOKS, "-o", home / "looks").code == 0
    shutil.copytree(home / "net", home / "grown")
    assert semimetric("add", home / "grown", home / "more.npy").code == 0
    torch.save({"a": torch.ones(3)}, home / "weights.pth")
    np.savez(home / "weights.npz", a=np.ones(3))
    names = sorted(path.relative_to(home / "photos").as_posix() for path in (home / "photos").rglob("*.*"))
    (home / "list.csv").write_text("path,label\n" + "\n".join(f"{name},{name[0]}" for name in names[::2]))
    (home / "settings.toml").write_text('method = "lrml"\n[method_settings]\nk = 5\n')
    book = Desk(home / "looks").book
    book.label([9, 10], "red", "someone")
    book.label([11], "new class", "someone")
    book.close()
    labels_file(home / "looks").rename(home / "book.sqlite")
    if find_spec("pyarrow"):
        import pandas

        pandas.read_csv(home / "new.csv").to_parquet(home / "new.parquet")
    if find_spec("faiss"):
        assert semimetric("index", home / "run", "--to", home / "index.faiss").code == 0
    if find_spec("milvus_lite"):
        assert semimetric("index", home / "run", "--to", home / "index.db").code == 0
    if find_spec("optuna"):
        assert semimetric("tune", home / "wine.npz", *TUNE, "-o", home / "study").code == 0
    return home


def damage_kinds(home: Path, folder: Path, count: int, seed: int = 0) -> Tally:
    """Commands on files of all these kinds, in turn."""
    tally, draw = Tally(), random.Random(seed)
    kinds = _kinds(home)
    for number in range(count):
        name, attempt = kinds[number % len(kinds)]
        place = folder / "kinds"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        tally.check(f"kind {name}", f"#{number}", lambda attempt=attempt, place=place: attempt(draw, place))  # type: ignore[misc]
    return tally


def _kinds(home: Path) -> list[tuple[str, Attempt]]:
    """What is tried, with its name; frequent kinds are listed more than once."""
    found: list[tuple[str, Attempt]] = [(f"photograph .{suffix}", _photograph(home, suffix)) for suffix in PICTURES]
    found += [("photographs sealed", _sealed(home, "looks")), ("added examples sealed", _sealed(home, "grown"))]
    found += [("labels of the page", _book(home)), ("parts of embeddings", _parts(home))]
    found += [("list of labels", _list(home)), ("settings", _settings(home))]
    found += [(f"weights .{suffix}", _weights(home, suffix)) for suffix in ("pth", "npz")]
    known = {
        "new.parquet": _table(home),
        "index.faiss": _index(home, "index.faiss"),
        "index.db": _index(home, "index.db"),
    }
    found += [(name, attempt) for name, attempt in known.items() if (home / name).exists()]
    return found + ([("study", _study(home))] if (home / "study").exists() else [])


def _broken(path: Path, draw: random.Random) -> None:
    path.write_bytes(damaged(path.read_bytes(), draw))


def _any_broken(folder: Path, draw: random.Random) -> Path:
    """Damage one of the files in a folder."""
    path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size))
    _broken(path, draw)
    return path


def _photograph(home: Path, suffix: str) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        (place / "new").mkdir()
        broken = place / "new" / f"x.{suffix}"
        broken.write_bytes(damaged((home / f"new.{suffix}").read_bytes(), draw))
        if draw.random() < 0.7:
            shutil.copy(home / "new.png", place / "new" / "whole.png")
        run, out = home / "looks", place / "out.csv"
        words: list[tuple[object, ...]] = [
            ("embed", run, place / "new", "-o", out),
            ("predict", run, place / "new", "-o", out),
            ("search", run, broken, "-k", 1),
            ("predict", run, broken),
        ]
        return semimetric(*draw.choice(words))

    return attempt


def _table(home: Path) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        shutil.copy(home / "new.parquet", place / "new.parquet")
        _broken(place / "new.parquet", draw)
        command = draw.choice(["embed", "predict"])
        return semimetric(command, home / "run", place / "new.parquet", "-o", place / "out.csv")

    return attempt


def _index(home: Path, name: str) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        if (home / name).is_dir():
            shutil.copytree(home / name, place / name)
            _any_broken(place / name, draw)
        else:
            shutil.copy(home / name, place / name)
            _broken(place / name, draw)
        return semimetric("search", home / "run", home / "new.npy", "-k", 1, "--index", place / name)

    return attempt


def _sealed(home: Path, name: str) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        run = Path(shutil.copytree(home / name, place / "run"))
        path = draw.choice(sorted(path for path in run.iterdir() if path.name != "manifest.json"))
        if path.suffix == ".json" and draw.random() < 0.7:
            path.write_bytes(with_other_value(path.read_bytes(), draw))
        else:
            _broken(path, draw)
        reseal(run)
        new = home / ("new.png" if name == "looks" else "new.npy")
        words: list[tuple[object, ...]] = [
            ("labels", run, "-o", place / "l.csv"),
            ("index", run, "--to", place / "i.npy"),
            ("predict", run, new),
            ("search", run, new, "-k", 1),
            ("suggest", run, "-n", 2, "-o", place / "s.csv"),
            ("add", run, new),
        ]
        if draw.random() < 0.3:
            return called(lambda: (read_facts(run).pictures.tile(0, 8), Desk(run).facts()))
        return semimetric(*draw.choice(words))

    return attempt


def called(call: Callable[[], object]) -> Done:
    """What a call would be as a command."""
    try:
        call()
    except SemimetricError as error:
        return Done(2, "", f"error: {error}")
    return Done(0, "", "")


def _book(home: Path) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        run = Path(shutil.copytree(home / "looks", place / "looks"))
        path = Path(shutil.copy(home / "book.sqlite", labels_file(run)))
        whole = _labels_of(path)
        _broken(path, draw)
        before = path.read_bytes()
        if draw.random() < 0.2:
            return semimetric("labels", run, "--recover", place / "copy")

        named: list[str] = []

        def use() -> None:
            book = Desk(run).book
            named.append(book.names[3])
            try:
                book.label([3], "blue", "someone")
            finally:
                book.close()

        done = called(use)
        if done.code:
            assert path.read_bytes() == before, "a refused book was changed"
        else:
            found = _labels_of(path)
            assert {name for name in found | whole if found.get(name) != whole.get(name)} <= {named[0]}, (
                "a label changed"
            )
        return done

    return attempt


def _labels_of(book: Path) -> dict[str, str | None]:
    """What a label book says of each example, by name."""
    with BookFile(book) as opened:
        return {entry.example: entry.label for entry in opened.entries()}


def _parts(home: Path) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        parts = place / ".e.npy.semimetric-parts"
        parts.mkdir()
        content = damaged(b'{"of": "' + b"0" * 64 + b'"}', draw)
        (parts / draw.choice(["origin.json", "000000.safetensors", ".semimetric-lock"])).write_bytes(content)
        return semimetric("embed", home / "run", home / "new.npy", "-o", place / "e.npy")

    return attempt


def _list(home: Path) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        shutil.copy(home / "list.csv", place / "list.csv")
        _broken(place / "list.csv", draw)
        words = ("fit", home / "photos", "--labels", place / "list.csv", *LOOKS, "-o", place / "run")
        return semimetric(*words, *(["--show-settings"] if draw.random() < 0.8 else []))

    return attempt


def _settings(home: Path) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        shutil.copy(home / "settings.toml", place / "settings.toml")
        _broken(place / "settings.toml", draw)
        return semimetric("fit", home / "wine.npz", "--config", place / "settings.toml", "--show-settings")

    return attempt


def _weights(home: Path, suffix: str) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        path = Path(shutil.copy(home / f"weights.{suffix}", place / f"weights.{suffix}"))
        _broken(path, draw)
        return semimetric("fit", home / "photos", "--weights", path, "--show-settings")

    return attempt


def _study(home: Path) -> Attempt:
    def attempt(draw: random.Random, place: Path) -> Done:
        study = Path(shutil.copytree(home / "study", place / "study"))
        path = _any_broken(study, draw)
        if path.name != "manifest.json" and draw.random() < 0.7:
            reseal(study)
        return semimetric("tune", home / "wine.npz", *TUNE, "-o", study)

    return attempt
