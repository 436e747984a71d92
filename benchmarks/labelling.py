"""A labelling session on the page: labels that it suggests, beside as many random ones. Accuracy on new examples.

    python benchmarks/labelling.py --data-dir DATA --out benchmarks/results/labelling.json
    python benchmarks/labelling.py --draw benchmarks/results/labelling.json --figure docs/labelling

``mnist`` is 500 training images as rows of pixels, and 1,000 test images are new. ``birds`` is all 884 photographs of
15 species of CUB-200 on which no setting was chosen; a third of them is new. One example of each class, drawn at
random, has a label. ``semimetric fit`` makes a run in 16 epochs, and ``semimetric serve`` serves it. Then ten rounds of
five labels are given to it over HTTP: those that its queue suggests, or random ones. After every fifth round it learns
again, without judging itself. In between, the labels are propagated over the embedding of the run, as the page does for
its queue. Seeds that --out holds already are not measured again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from browsing import served
from jobs import machine, write_result
from own_photographs import photographs_of
from torch import Tensor

from semimetric.data import load_dataset
from semimetric.model.fitted import posteriors_of
from semimetric.model.folder import load_run
from semimetric.reporting.canvas import write_figure
from semimetric.reporting.figures import Curve, curves_figure
from semimetric.serve.embed import embed_chunks, new_examples, together
from semimetric.serve.evaluate import evaluate_examples

WAYS = ("suggested", "random")
IMAGES, NEW_IMAGES = 500, 1000
TITLES = {"mnist": "MNIST", "birds": "15 bird species"}


class Material(NamedTuple):
    """What ``fit`` reads, the new examples, and the true class of each example by its name."""

    source: Path
    new: Path
    truth: dict[str, str]


def mnist(data_dir: Path, folder: Path, seed: int) -> Material:
    """Rows of pixels with one label of each digit."""
    found = load_dataset("mnist", data_dir)
    generator = torch.Generator().manual_seed(seed)
    files = (folder / "images.npz", folder / "new.npz")
    rows = torch.randperm(len(found.train), generator=generator)[:IMAGES]
    new = torch.randperm(len(found.test), generator=generator)[:NEW_IMAGES]
    pixels, classes = found.train.inputs[rows].flatten(1).numpy(), found.train.labels[rows].numpy()
    known = np.full(IMAGES, -1)
    first = [np.flatnonzero(classes == number)[0] for number in range(10)]
    known[first] = classes[first]
    np.savez(files[0], X=pixels, y=known)
    np.savez(files[1], X=found.test.inputs[new].flatten(1).numpy(), y=found.test.labels[new].numpy())
    return Material(*files, {f"row {row}": str(number) for row, number in enumerate(classes.tolist())})


def birds(data_dir: Path, folder: Path, seed: int) -> Material:
    """Photographs of 15 species with one label of each; the files are links."""
    paths, classes = photographs_of(data_dir, "species", 0)
    order = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed)).tolist()
    truth, seen = {}, dict[int, int]()
    for row in order:
        number = int(classes[row])
        seen[number] = place = seen.get(number, -1) + 1
        species = paths[row].parent.name
        kind = f"new/{species}" if place % 3 == 0 else f"photos/{species}" if place == 1 else "photos/unlabelled"
        link = folder / kind / f"{row:04d}{paths[row].suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(paths[row].resolve())
        truth[str(link.relative_to(folder / "photos")) if place % 3 else ""] = species
    return Material(folder / "photos", folder / "new", truth)


SETS = {"mnist": mnist, "birds": birds}


class Judge:
    """Accuracy on new examples of the run that the page serves, with the labels that it has been given."""

    def __init__(self, new: Path) -> None:
        self._new, self._path = new, Path()

    def _open(self, run: Path) -> None:
        if run != self._path:
            self._path, self._loaded = run, load_run(run, "cpu")
            collection = new_examples(self._loaded, self._new)
            found = together(list(embed_chunks(self._loaded, collection)), {})
            of = dict(zip(collection.names, collection.labels, strict=True))
            self._points, self._names = found.embeddings, found.names
            self._labels = [of[name] for name in found.names]

    def accuracy(self, run: Path, labels: list[str | None], learned: bool) -> float:
        """That of the run itself where it has just learned, else of the labels propagated over its embedding."""
        self._open(run)
        fitted = self._loaded.fitted
        if not learned:
            numbers = {str(name): number for number, name in enumerate(fitted.examples.classes)}
            known = torch.tensor([-1 if label is None else numbers[label] for label in labels])
            fitted = replace(fitted, labels=known, posteriors=posteriors_of(fitted.embeddings, known))
        found = evaluate_examples(fitted, self._points, None, self._labels, self._names)
        return 1.0 - len(found.mistakes) / found.examples


class Page:
    """The endpoints of the page that a session needs."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, value: dict[str, Any] | None = None) -> Any:
        """The answer to a GET, or to a POST of a value."""
        body = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self._address + path, body, {"X-Semimetric": "page"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def learn(self) -> str:
        """Learn again, and return the name of the new run."""
        out = Path(self.ask("api/learn", {"judge": False})["out"]).name
        while True:
            time.sleep(0.5)
            facts = self.ask("api/run")
            if facts["name"] == out:
                return out
            if not facts["learning"]:
                raise SystemExit(f"learning again failed: {facts}")


def session(material: Material, run: Path, way: str, seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Accuracy on new examples before the first round and after each."""
    names = load_run(run, "cpu").fitted.examples.names
    truth = [material.truth[name] for name in names]
    judge, generator = Judge(material.new), np.random.default_rng(seed)
    with served(run) as address:
        page = Page(address)
        everyone = page.ask("api/examples", {"rows": list(range(len(names)))})
        labels: list[str | None] = [entry["label"] for entry in everyone]
        lines = [{"labels": len(names) - labels.count(None), "accuracy": judge.accuracy(run, labels, True)}]
        for number in range(1, args.rounds + 1):
            if way == "suggested":
                rows = [entry["row"] for entry in page.ask(f"api/list/queue?n={args.labels}")]
            else:
                free = [row for row, label in enumerate(labels) if label is None]
                rows = generator.choice(free, args.labels, replace=False).tolist()
            for row in rows:
                labels[row] = truth[row]
                page.ask("api/labels", {"rows": [row], "label": truth[row], "who": way})
            learned = number % args.learn_every == 0
            if learned:
                run = run.with_name(page.learn())
            count = len(names) - labels.count(None)
            lines.append({"labels": count, "accuracy": judge.accuracy(run, labels, learned)})
    return lines


@contextmanager
def begun(name: str, seed: int, args: argparse.Namespace) -> Iterator[tuple[Material, Path]]:
    """The data of a seed, and a run on them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        material = SETS[name](args.data_dir, folder, seed)
        words = ["fit", str(material.source), "-o", str(folder / "run"), "--seed", str(seed), "--threads", "1"]
        words += ["--epochs", str(args.epochs), "--quiet"]
        subprocess.run([sys.executable, "-m", "semimetric", *words], check=True, capture_output=True)
        yield material, folder / "run"


def measured(name: str, seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Both sessions of a seed, each on its own copy of the run."""
    torch.set_num_threads(1)
    outcomes = []
    with begun(name, seed, args) as (material, run):
        for way in WAYS:
            began, own = time.perf_counter(), run.parent / way / "run"
            shutil.copytree(run, own)
            lines = session(material, own, way, seed, args)
            seconds = round(time.perf_counter() - began)
            outcomes.append({"set": name, "way": way, "seed": seed, "seconds": seconds, "rounds": lines})
            print(name, seed, way, [round(100 * line["accuracy"], 1) for line in lines], seconds, "s", flush=True)
    return outcomes


def accuracies(outcomes: list[dict[str, Any]], name: str, way: str) -> Tensor:
    """(seeds, rounds + 1) of one set and way."""
    kept = [entry for entry in outcomes if (entry["set"], entry["way"]) == (name, way)]
    return torch.tensor([[line["accuracy"] for line in entry["rounds"]] for entry in kept], dtype=torch.float64)


def summary(outcomes: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """For each round the mean of both ways, and the mean difference of pairs with its standard error."""
    suggested, random = (accuracies(outcomes, name, way) for way in WAYS)
    gain = suggested - random
    counts = [line["labels"] for line in next(entry for entry in outcomes if entry["set"] == name)["rounds"]]
    columns = {
        "suggested": suggested.mean(0),
        "random": random.mean(0),
        "gain": gain.mean(0),
        "standard_error": gain.std(0) / len(gain) ** 0.5,
        "seeds_better": (gain > 0).sum(0),
    }
    return [
        {"labels": count} | {key: round(float(values[place]), 5) for key, values in columns.items()}
        for place, count in enumerate(counts)
    ]


def draw(outcomes: list[dict[str, Any]], names: list[str], file: Path) -> None:
    """The curves of all sets, with the standard deviation of the seeds as a band."""
    panels = []
    for name in names:
        x = [line["labels"] for line in summary(outcomes, name)]
        ways = [(way, 100 * accuracies(outcomes, name, way)) for way in WAYS]
        curves = [Curve(way, x, found.mean(0).tolist(), found.std(0).tolist()) for way, found in ways]
        panels.append((f"{TITLES[name]}, per cent", curves))
    note = "New examples predicted correctly; mean of the seeds, and their standard deviation as a band."
    write_figure(curves_figure(panels, "Labels", note), file)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sets", nargs="+", choices=[*SETS], default=[*SETS])
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--labels", type=int, default=5, help="labels of a round")
    options.add_argument("--learn-every", type=int, default=5, help="rounds after which the page learns again")
    options.add_argument("--epochs", type=int, default=16, help="epochs of the first run")
    options.add_argument("--workers", type=int, default=2, help="sessions at the same time")
    options.add_argument("--figure", type=Path, help="picture of the curves, without a suffix")
    options.add_argument("--draw", type=Path, nargs="+", help="draw the curves of these results, and measure nothing")
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Hold all sessions, print a table, write the result and the figure."""
    args = parser().parse_args()
    if args.draw:
        outcomes = [line for file in args.draw for line in json.loads(file.read_text())["outcomes"]]
        draw(outcomes, list(dict.fromkeys(line["set"] for line in outcomes)), args.figure)
        return
    outcomes = json.loads(args.out.read_text())["outcomes"] if args.out and args.out.exists() else []
    done = {(line["set"], line["seed"]) for line in outcomes}
    jobs = [(name, seed, args) for name in args.sets for seed in range(args.seeds) if (name, seed) not in done]
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        for lines in pool.map(measured, *zip(*jobs, strict=True)) if jobs else ():
            outcomes += lines
            write_result(args.out, machine() | {"outcomes": outcomes})
    names = list(dict.fromkeys(line["set"] for line in outcomes))
    found = {name: summary(outcomes, name) for name in names}
    for name, lines in found.items():
        for line in lines:
            print(name, line)
    write_result(args.out, machine() | {"summary": found, "outcomes": outcomes})
    if args.figure is not None:
        draw(outcomes, names, args.figure)


if __name__ == "__main__":
    main()
