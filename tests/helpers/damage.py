"""Damage to files, seeded, and commands on what is left: a sentence or an answer, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from helpers.command import Done, semimetric
from helpers.sealed import reseal
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.core.errors import SemimetricError
from semimetric.search import ExactIndex

HANGS = 20.0
"""Seconds after which a command counts as hanging."""

JSON_VALUES: list[Any] = [None, True, -1, 0, 1e308, 10**30, "", "x" * 500, [], {}, [[]], {"a": {}}, "\x1b[31m", "../x"]


@dataclass
class Tally:
    """What was tried and what went wrong."""

    tried: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def check(self, kind: str, what: str, call: Callable[[], Done], usual: float = 0.0) -> Done | None:
        """Run a command; a traceback, a hang, or a failure without a sentence is wrong.

        ``usual`` are the seconds that it takes without any fault, on a machine that may be busy.
        """
        self.tried[kind] += 1
        began = time.monotonic()
        try:
            done = call()
        except Exception:
            last = traceback.format_exc().strip().splitlines()
            self.wrong.append(f"{kind} {what}: {last[-1]} | {' '.join(last[-4:-2])}")
            return None
        if time.monotonic() - began > HANGS + 3 * usual:
            self.wrong.append(f"{kind} {what}: took {time.monotonic() - began:.0f} s")
        if done.code not in (0, 1) and not any(line.startswith("error: ") for line in done.err.splitlines()):
            self.wrong.append(f"{kind} {what}: code {done.code} without a sentence: {done.err[-200:]}")
        if "Traceback" in done.err:
            self.wrong.append(f"{kind} {what}: {done.err[-300:]}")
        return done


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The content with one kind of damage."""
    place = draw.randrange(len(content) + 1)
    length = draw.choice([1, 4, 64, 1000])
    noise = bytes(draw.randrange(256) for _ in range(length))
    kinds: list[Callable[[], bytes]] = [
        lambda: content[:place],
        lambda: content[:place] + noise + content[place:],
        lambda: content[:place] + noise + content[place + length :],
        lambda: content[:place] + bytes(length) + content[place + length :],
        lambda: content[:place] + content[place + length :],
        lambda: content + content,
        lambda: noise,
        lambda: flipped(content, draw),
        lambda: b"[" * 100_000,
    ]
    return draw.choice(kinds)()


def flipped(content: bytes, draw: random.Random) -> bytes:
    """The content with one bit flipped."""
    changed = bytearray(content)
    if changed:
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def with_other_value(content: bytes, draw: random.Random) -> bytes:
    """A JSON object with another value somewhere, or without a field."""
    value = json.loads(content)
    spot = value
    while True:
        key = draw.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))
        if isinstance(spot[key], dict | list) and spot[key] and draw.random() < 0.6:
            spot = spot[key]
            continue
        if isinstance(spot, dict) and draw.random() < 0.3:
            del spot[key]
        else:
            spot[key] = draw.choice(JSON_VALUES)
        return json.dumps(value).encode()


def make_home(folder: Path) -> Path:
    """Tables of several kinds, a run of a network and one without, and indexes of them."""
    features, classes = load_wine(return_X_y=True)
    features, classes = features[::4], classes[::4]
    labels = np.where(np.arange(len(classes)) % 3 == 0, classes, -1)
    np.savez(folder / "wine.npz", X=features, y=labels)
    np.save(folder / "new.npy", features[:9])
    np.save(folder / "more.npy", load_wine().data[1::4][:9])
    names = ",".join(f"c{column}" for column in range(features.shape[1]))
    np.savetxt(folder / "new.csv", features[:9], delimiter=",", header=names, comments="")
    (folder / "new.tsv").write_text((folder / "new.csv").read_text().replace(",", "\t"))
    (folder / "labels.csv").write_text("name,label\nrow 0,1\nrow 1,0\n")
    network = ["--epochs", 1, "--passes", 1, "--encoder", "linear", "--threads", 1]
    assert semimetric("fit", folder / "wine.npz", *network, "-o", folder / "net").code == 0
    sm.save(sm.LRML(n_components=2).fit(features, labels), folder / "run")
    assert semimetric("index", folder / "run", "--to", folder / "index.npy").code == 0
    return folder


def damage_inputs(home: Path, folder: Path, count: int, seed: int = 0) -> Tally:
    """Commands on damaged tables and indexes."""
    tally, draw = Tally(), random.Random(seed)
    names = ["new.npy", "new.csv", "new.tsv", "wine.npz", "index.npy"]
    for number in range(count):
        name = names[number % len(names)]
        broken = folder / f"broken{Path(name).suffix}"
        broken.write_bytes(damaged((home / name).read_bytes(), draw))
        out, run = folder / "out.csv", home / "run"
        command = {
            0: ("embed", run, broken, "-o", out, "--replace"),
            1: ("predict", run, broken, "-o", out, "--replace"),
            2: ("search", run, broken, "-k", 1),
            3: ("evaluate", run, broken),
        }[draw.randrange(4)]
        if name == "index.npy":
            command = ("search", run, home / "new.npy", "-k", 1, "--index", broken)
        tally.check(f"input {name}", f"#{number} {command[0]}", lambda words=command: semimetric(*words))  # type: ignore[misc]
    return tally


def damage_runs(home: Path, folder: Path, count: int, seed: int = 0) -> Tally:
    """Runs with damaged files that are sealed again, as a stranger could: no answer is a traceback."""
    tally, draw = Tally(), random.Random(seed)
    for number in range(count):
        source = home / draw.choice(["net", "run"])
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(source, run)
        path = draw.choice(sorted(path for path in run.iterdir() if path.name != "manifest.json"))
        content = path.read_bytes()
        structured = path.suffix == ".json" and draw.random() < 0.7
        path.write_bytes(with_other_value(content, draw) if structured else damaged(content, draw))
        reseal(run)
        commands: list[tuple[object, ...]] = [("suggest", run, "-n", 1), ("verify", run), ("info", run)]
        if source.name == "net" and path.name in ("checkpoint.safetensors", "metrics.jsonl", "config.json"):
            again = ["--epochs", 1, "--passes", 1, "--encoder", "linear", "--threads", 1]
            commands = [("fit", home / "wine.npz", *again, "-o", run, "--resume")]
        command = draw.choice(commands)
        tally.check(f"sealed {path.name}", f"#{number} {command[0]}", lambda words=command: semimetric(*words))  # type: ignore[misc]
    return tally


def flip_runs(home: Path, folder: Path, count: int, seed: int = 0) -> Tally:
    """Runs with one flipped bit: refused, or the answer is that of the whole run."""
    tally, draw = Tally(), random.Random(seed)
    answers = {name: semimetric("suggest", home / name, "-n", 3, "--json").out for name in ("net", "run")}
    for number in range(count):
        source = draw.choice(["net", "run"])
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(home / source, run)
        path = draw.choice(sorted(run.iterdir()))
        path.write_bytes(flipped(path.read_bytes(), draw))
        done = tally.check(
            f"flip {path.name}", f"#{number}", lambda run=run: semimetric("suggest", run, "-n", 3, "--json")
        )
        if done is not None and done.code == 0 and done.out != answers[source]:
            tally.wrong.append(f"flip {path.name} #{number}: another answer without a word")
        if semimetric("verify", run).code == 0:
            tally.wrong.append(f"flip {path.name} #{number}: verify finds nothing")
    return tally


@contextmanager
def full_disk(after: int) -> Iterator[list[int]]:
    """Let every flush to disk fail, from number ``after`` on, as a full disk does; yields how many there were."""
    count, fsync = [0], os.fsync

    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            return
        count[0] += 1
        if count[0] > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with patch.object(os, "fsync", failing):
        yield count


def fill_disk(home: Path, folder: Path, most: int, seed: int = 0) -> Tally:
    """Commands on a disk that is full from their n-th write on: a sentence, and afterwards the same command works."""
    tally = Tally()
    out = folder / "out.npy"
    fit = ("fit", home / "wine.npz", "--method", "lrml", "--resume", "-o", folder / "fitted")
    commands: dict[str, tuple[object, ...]] = {
        "fit": fit,
        "embed": ("embed", home / "run", home / "new.npy", "--replace", "-o", out),
        "predict": ("predict", home / "run", home / "new.npy", "--replace", "-o", folder / "out.csv"),
        "index": ("index", home / "run", "--replace", "--to", folder / "out.index.npy"),
    }
    for name, words in commands.items():
        for after in range(most):
            before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
            with full_disk(after) as count:
                done = tally.check(f"full disk {name}", f"after {after}", lambda words=words: semimetric(*words))  # type: ignore[misc]
            if any(path.read_bytes() != content for path, content in before.items()):
                tally.wrong.append(f"full disk {name} after {after}: a file was lost")
            if done is not None and count[0] > after and done.code == 0:
                tally.wrong.append(f"full disk {name} after {after}: success on a full disk")
            again = tally.check(f"after a full disk {name}", f"{after}", lambda words=words: semimetric(*words))  # type: ignore[misc]
            if again is not None and again.code != 0:
                tally.wrong.append(f"full disk {name} after {after}: does not recover: {again.err}")
            if count[0] <= after:
                break
            for left in (folder / "fitted", out, folder / "out.csv", folder / "out.index.npy"):
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    return tally


def calls_with(model: Any, odd: Any, k: int) -> list[Callable[[], Any]]:
    """What is called with odd numbers."""
    return [
        lambda: model.transform(odd),
        lambda: model.predict_proba(odd),
        lambda: model.kneighbors(odd, 3)[0],
        lambda: sm.nearest_neighbors(odd, k),
        lambda: ExactIndex(odd).search(odd, 2).distances,
        lambda: sm.LRML(n_components=2).fit(odd, np.arange(len(odd)) % 3 - 1).embedding_,
    ]


def odd_numbers(count: int, seed: int = 0) -> Tally:
    """Calls with numbers of all sizes: an error with a sentence, or finite numbers."""
    tally, draw = Tally(), np.random.default_rng(seed)
    features, classes = load_wine(return_X_y=True)
    labels = np.where(np.arange(178) % 3 == 0, classes, -1)
    model = sm.LRML(n_components=2).fit(features, labels)
    for number in range(count):
        odd = features[draw.permutation(178)[: draw.integers(2, 30)]].copy()
        spots = draw.integers(0, odd.size, draw.integers(0, 4))
        odd.flat[spots] = draw.choice([np.nan, np.inf, -np.inf, 1e308, -3.4e38, 1e-308, 0.0, 1e155, 5e-324], len(spots))
        odd = odd * 10.0 ** float(draw.choice([0, 0, 0, -300, -150, 150, 290]))
        odd = odd.astype(draw.choice([np.float64, np.float32, np.float16]))
        calls = calls_with(model, odd, int(draw.choice([1, 2, 3, 40, -1])))
        which = int(draw.integers(len(calls)))
        tally.tried[f"numbers {which}"] += 1
        try:
            with np.errstate(all="ignore"):
                found = torch.as_tensor(calls[which]())
        except (SemimetricError, ValueError):
            continue
        except Exception as error:
            tally.wrong.append(f"numbers {which} #{number}: {error!r}")
            continue
        if not bool(torch.isfinite(found.double()).all()):
            tally.wrong.append(f"numbers {which} #{number}: not finite without a word")
    return tally
