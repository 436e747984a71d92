"""How fast the page is, in a browser that draws in software. Run: python benchmarks/page.py.

Measured: frames per second while 200,000 points are dragged; the first paint of 50,000; a search among 100,000; a label
saved. Writes benchmarks/results/page.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from browsing import browser, served
from jobs import machine, write_result

import semimetric as sm
from semimetric.graph import Posteriors
from semimetric.model.folder import write_fitted
from semimetric.model.spec import ExampleNames
from semimetric.training import Run

WIDTH, CLASSES = 64, 20
COUNT_FRAMES = "() => { window.frames_ = 0; (function count() { window.frames_++; requestAnimationFrame(count); })(); }"
RESULTS = Path(__file__).parent / "results" / "page.json"


def write_run(path: Path, count: int) -> Path:
    """A run with ``count`` examples in clusters; its model is small and real."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, WIDTH, generator=generator)
    classes = torch.arange(count) % CLASSES
    points = centres[classes] + 0.4 * torch.randn(count, WIDTH, generator=generator)
    few = slice(0, 10 * CLASSES)
    model = sm.SemiMetric(method="lrml", settings={"k": 5}, random_state=0).fit(
        points[few].numpy(), [f"class {number}" for number in classes[few].tolist()]
    )
    labels = torch.where(torch.arange(count) < 200, classes, -1)
    shares = 0.01 + torch.nn.functional.one_hot(classes, CLASSES).double()
    posteriors = Posteriors(torch.arange(CLASSES), shares / shares.sum(1, keepdim=True), torch.rand(count).double())
    names = ExampleNames(tuple(f"row {row}" for row in range(count)), "", model.fitted_.examples.classes)
    fitted = dataclasses.replace(
        model.fitted_, embeddings=points.double(), labels=labels, posteriors=posteriors, examples=names
    )
    sm.save(model, path)
    write_fitted(Run(path), fitted)
    return path


def asked(address: str, method: str, path: str, bodies: list[Any]) -> list[float]:
    """Milliseconds of requests, one after another, on one connection."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    taken = []
    for number, body in enumerate(bodies):
        began = time.perf_counter()
        connection.request(method, path.format(number), body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        taken.append(1000 * (time.perf_counter() - began))
        assert answer.status == 200
    return taken


def opened(page: Any, address: str) -> float:
    """Milliseconds from the start of loading until the map is drawn."""
    page.set_default_timeout(180_000)
    page.goto(address)
    page.wait_for_function("document.body.dataset.painted !== undefined")
    return float(page.evaluate("Number(document.body.dataset.painted)"))


def frames(page: Any, seconds: float = 4.0) -> float:
    """Frames per second while the map is dragged."""
    page.wait_for_function("document.body.dataset.ready === 'yes'")
    box = page.locator("#map").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.evaluate(COUNT_FRAMES)
    page.mouse.move(x, y)
    page.mouse.down()
    began, start = time.perf_counter(), page.evaluate("window.frames_")
    step = 0
    while time.perf_counter() - began < seconds:
        step += 1
        page.mouse.move(x + 60 * ((step % 20) / 10 - 1), y + 30 * ((step % 14) / 7 - 1))
    taken = time.perf_counter() - began
    shown = page.evaluate("window.frames_") - start
    page.mouse.up()
    return float(shown / taken)


def spread(values: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    return {"median": round(statistics.median(values), 2), "p95": round(sorted(values)[int(0.95 * len(values))], 2)}


def parser() -> argparse.ArgumentParser:
    """The command line, which has no options."""
    return argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)


def main() -> None:
    """Measure all, and write the results."""
    parser().parse_args()
    found: dict[str, Any] = machine() | {"load_before": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for count in (50_000, 100_000, 200_000):
            with served(write_run(Path(folder) / f"run{count}", count)) as address:
                page = chromium.new_page(viewport={"width": 1280, "height": 900})
                paint = [opened(page, address) for _ in range(3)]
                entry: dict[str, Any] = {"first_paint_ms": spread(paint)}
                entry["frames_per_second"] = round(frames(page), 1)
                page.close()
                entry["search_ms"] = spread(asked(address, "GET", "/api/similar/{}?n=48", [None] * 60))
                bodies = [{"rows": [300 + row], "label": "class 1"} for row in range(100)]
                entry["label_ms"] = spread(asked(address, "POST", "/api/labels", bodies))
                found[str(count)] = entry
                print(count, entry, flush=True)
    write_result(RESULTS, found)


if __name__ == "__main__":
    main()
