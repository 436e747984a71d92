"""Commands that are struck by a signal, by a second writer or by a full disk, and the advised command after it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from helpers.command import Done, semimetric
from helpers.damage import HANGS, Tally
from helpers.killed import Killer
from safetensors import safe_open
from safetensors.torch import load_file

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TIMES = ("seconds", "run", "started", "ended", "out", "origin")

Words = tuple[object, ...]
Maker = Callable[[Path, Path], Words]


@dataclass(frozen=True)
class Scene:
    """A command on files of ``home`` that writes to ``folder``.

    Parameters
    ----------
    words : the command; after whatever struck it, the same one is advised
    allowed : what the advised command may say in place of success, as the work was done before
    asked : a command whose answer tells whether the result is right; without it the files are compared
    brings : files of home that the command changes, and that are copied to the folder before
    extra : a package that it needs
    """

    name: str
    words: Maker
    allowed: str = ""
    asked: Maker | None = None
    brings: tuple[str, ...] = ()
    extra: str = ""

    def prepare(self, home: Path, folder: Path) -> Path:
        """A folder in which the command can be given."""
        folder.mkdir(parents=True)
        for name in self.brings:
            shutil.copytree(home / name, folder / name)
        return folder

    def result(self, home: Path, folder: Path) -> dict[str, Any]:
        """What the command left: the files by name, and the answer to what is asked of it."""
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        if self.asked is None:
            return {name: content_of(folder / name) for name in names}
        return {"answer": semimetric(*self.asked(home, folder)).json()} | (
            {} if self.name == "index milvus" else {"names": names}
        )


def content_of(path: Path) -> Any:
    """What a file holds, without times and places."""
    if path.name in ("manifest.json", "study.log", "origin.json"):
        return "kept"
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            state = json.loads((file.metadata() or {}).get("state", "null"))
        tensors = {name: (tensor.dtype, tensor.tolist()) for name, tensor in load_file(path).items()}
        return tensors, without_times(state)
    if path.suffix == ".json":
        return without_times(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
    return path.read_bytes()


def without_times(value: Any) -> Any:
    """A JSON value without the fields that say when and where."""
    if isinstance(value, dict):
        return {name: without_times(found) for name, found in value.items() if name not in TIMES}
    return value


NETWORK = ("--epochs", 3, "--passes", 1, "--encoder", "linear", "--threads", 1)


def _search(index: str) -> Maker:
    return lambda home, folder: ("search", home / "run", home / "new.npy", "-k", 2, "--index", folder / index, "--json")


SCENES = (
    Scene("fit", lambda home, out: ("fit", home / "wine.npz", *NETWORK, "--resume", "-o", out / "fitted")),
    Scene("embed", lambda home, out: ("embed", home / "run", home / "new.npy", "-o", out / "e.npy"), "exists"),
    Scene("predict", lambda home, out: ("predict", home / "run", home / "new.npy", "-o", out / "p.csv"), "exists"),
    Scene("index npy", lambda home, out: ("index", home / "run", "--to", out / "i.npy"), "exists", _search("i.npy")),
    Scene(
        "index faiss",
        lambda home, out: ("index", home / "run", "--to", out / "i.faiss"),
        "exists",
        _search("i.faiss"),
        extra="faiss",
    ),
    Scene(
        "index milvus",
        lambda home, out: ("index", home / "run", "--to", out / "i.db"),
        "has a collection|exists",
        _search("i.db"),
        extra="milvus_lite",
    ),
    Scene(
        "tune",
        lambda home, out: ("tune", home / "wine.npz", "--method", "lrml", "--trials", 3, "-o", out / "study"),
        extra="optuna",
    ),
    Scene("suggest", lambda home, out: ("suggest", home / "net", "-n", 3, "-o", out / "s.csv"), "exists"),
    Scene(
        "export",
        lambda home, out: ("export", home / "net", "--onnx", "--check", home / "wine.npz", "-o", out / "m.onnx"),
        "exists",
        extra="onnxscript",
    ),
    Scene("add", lambda home, out: ("add", out / "net", home / "more.npy"), "are copies of examples", brings=("net",)),
    Scene("labels", lambda home, out: ("labels", home / "net", "-o", out / "l.csv"), "exists"),
)


FURTHER = ("semimetric.pipeline.study", "optuna", "faiss", "torch.onnx", "onnxscript", "onnxruntime", "pymilvus")
"""What some of these commands import beside what all do."""


class Stage:
    """Where scenes are played: their undisturbed results, how long they take, and what was wrong."""

    def __init__(self, home: Path, folder: Path, killer: Killer, scenes: Sequence[Scene] = SCENES) -> None:
        from importlib.util import find_spec

        self.home, self.killer = home, killer
        self.scenes = [scene for scene in scenes if not scene.extra or find_spec(scene.extra)]
        self._folder = folder
        self.tally = Tally()
        self.whole: dict[str, dict[str, Any]] = {}
        self.lasts: dict[str, float] = {}
        self.usual: dict[str, float] = {}
        self.changes: dict[str, int] = {}
        killer.ended(self.begin("info", home / "net", folder=folder)[0], self.said)  # starts the server of processes
        for scene in self.scenes:
            out = scene.prepare(home, self.new_folder())
            began = time.monotonic()
            process, changes = self.begin(*scene.words(home, out), folder=out)
            done = killer.ended(process, self.said)
            self.lasts[scene.name], self.changes[scene.name] = time.monotonic() - began, changes.value
            self.usual[scene.name] = self.lasts[scene.name]
            assert done.code == 0, done.err
            self.whole[scene.name] = scene.result(home, out)
        self._inputs = self._home_files()

    def begin(self, *words: object, folder: Path, **how: Any) -> tuple[BaseProcess, Any]:
        """A command in a process of its own."""
        return self.killer.begin(how.pop("said", self.said), *words, folder=folder, **how)

    @property
    def said(self) -> Path:
        """Where processes print to."""
        return self._folder / "said"

    def new_folder(self) -> Path:
        """A folder that is yet to be made."""
        return Path(tempfile.mkdtemp(dir=self._folder)) / "out"

    def _home_files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(self.home.rglob("*")) if path.is_file()}

    def wrong(self, kind: str, what: str) -> None:
        """Note what was wrong."""
        self.tally.wrong.append(f"{kind}: {what}")

    def check_said(self, kind: str, done: Done, interrupted: bool = False) -> None:
        """A process that was not killed says one sentence about what went wrong, and nothing of Python's."""
        self.tally.tried[kind] += 1
        if "Traceback" in done.err or "Error:" in done.err:
            self.wrong(kind, f"traceback: {done.err[-600:]}")
        begins = ("interrupted",) if interrupted else ("error: ",)
        if done.code > 0 and not any(line.startswith(begins) for line in done.err.splitlines()):
            self.wrong(kind, f"code {done.code} without a sentence: {done.err[-300:]!r}")

    def check_after(self, kind: str, scene: Scene, folder: Path) -> None:
        """Nothing is lost, and the advised command makes what an undisturbed one does."""
        if self._home_files() != self._inputs:
            self.wrong(kind, "an input was changed")
        words, usual = scene.words(self.home, folder), self.usual[scene.name]
        done = self.tally.check(f"after {kind}", scene.name, lambda: semimetric(*words), usual)
        if done is None or (done.code and not any(part in done.err for part in scene.allowed.split("|") if part)):
            self.wrong(kind, f"the advised command fails: {done and done.err}")
            return
        found, whole = scene.result(self.home, folder), self.whole[scene.name]
        if found != whole:
            differing = [name for name in sorted({*found, *whole}) if found.get(name) != whole.get(name)]
            self.wrong(kind, f"another result: {differing}")

    def close(self, folder: Path) -> None:
        """Remove what a scene left."""
        shutil.rmtree(folder.parent, ignore_errors=True)


def strike(stage: Stage, count: int, seed: int = 0) -> Tally:
    """Signals at random moments, in turn over all commands: what was written before is whole, and the rest is made."""
    draw, struck, number = random.Random(seed), 0, 0
    while struck < count:
        scene = stage.scenes[number % len(stage.scenes)]
        sent = SIGNALS[(number // len(stage.scenes)) % len(SIGNALS)]
        at_change = sent == signal.SIGKILL and draw.random() < 0.5
        number += 1
        folder = scene.prepare(stage.home, stage.new_folder())
        dies_at = draw.randint(1, stage.changes[scene.name]) if at_change else 0
        process, _ = stage.begin(*scene.words(stage.home, folder), folder=folder, dies_at=dies_at)
        moment = HANGS if at_change else draw.random() * stage.lasts[scene.name]
        process.join(moment)
        in_time = process.exitcode is None or at_change
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, sent)
        kind = f"{sent.name}{' before a write' if at_change else ''} {scene.name}"
        process.join(HANGS)
        if process.exitcode is None:
            stage.wrong(kind, f"still running {HANGS:.0f} s after the signal")
            process.kill()
        done = stage.killer.ended(process, stage.said)
        if in_time:
            struck += 1
            stage.check_said(kind, done, interrupted=sent != signal.SIGKILL)
            stage.check_after(kind, scene, folder)
        else:
            stage.lasts[scene.name] = moment  # it had ended: the machine was busier before
        stage.close(folder)
    return stage.tally


def write_twice(stage: Stage, rounds: int = 1) -> Tally:
    """Two processes at once that write to the same place: at least one succeeds, and nothing is torn or left over."""
    for scene in (scene for _ in range(rounds) for scene in stage.scenes):
        kind = f"two writers {scene.name}"
        folder = scene.prepare(stage.home, stage.new_folder())
        second = stage.said.with_name("second")
        words = scene.words(stage.home, folder)
        both = {said: stage.begin(*words, folder=folder, said=said)[0] for said in (stage.said, second)}
        done = [stage.killer.ended(process, said) for said, process in both.items()]
        for each in done:
            stage.check_said(kind, each)
        if all(each.code for each in done):
            stage.wrong(kind, f"neither succeeds: {done[0].err} {done[1].err}")
        stage.check_after(kind, scene, folder)
        stage.close(folder)
    return stage.tally


def lack_room(stage: Stage, most: int) -> Tally:
    """A disk on which files cannot grow beyond a few kilobytes: a sentence, and afterwards the same command works."""
    for scene in stage.scenes:
        for most_bytes in (4096 * number for number in range(1, most + 1)):  # what is printed must fit
            kind = f"no room {scene.name}"
            folder = scene.prepare(stage.home, stage.new_folder())
            process, _ = stage.begin(*scene.words(stage.home, folder), folder=folder, most_bytes=most_bytes)
            done = stage.killer.ended(process, stage.said)
            stage.check_said(kind, done)
            stage.check_after(kind, scene, folder)
            stage.close(folder)
            if done.code == 0:
                break
    return stage.tally
