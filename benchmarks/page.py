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
from contextlib import suppress
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
DRAG = """
seconds => new Promise(done => {
  const map = document.getElementById("map"), box = map.getBoundingClientRect();
  const tell = (kind, target, right, down) => target.dispatchEvent(new MouseEvent(kind, {
    bubbles: true, buttons: 1, clientX: box.left + box.width / 2 + right, clientY: box.top + box.height / 2 + down }));
  tell("mouseenter", map, 0, 0);
  tell("mousemove", window, 0, 0);
  tell("mousedown", map, 0, 0);
  const began = performance.now();
  let frames = 0;
  const frame = () => {
    const passed = performance.now() - began;
    if (passed > 1000 * seconds) {
      tell("mouseup", window, 0, 0);
      done(1000 * frames / passed);
      return;
    }
    frames++;
    tell("mousemove", window, 60 * Math.sin(frames / 5), 30 * Math.cos(frames / 7));
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})
"""
"""Drag the map by a little in every frame: the number of frames in a second."""

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
    connection, key = http.client.HTTPConnection(urlsplit(address).netloc), urlsplit(address).path.rstrip("/")
    headers = {"X-Semimetric": "page"}
    taken = []
    for number, body in enumerate(bodies):
        began = time.perf_counter()
        content = None if body is None else json.dumps(body)
        connection.request(method, key + path.format(number), content, headers)
        answer = connection.getresponse()
        answer.read()
        taken.append(1000 * (time.perf_counter() - began))
        assert answer.status == 200
    return taken


def opened(page: Any, address: str) -> float:
    """Milliseconds from the start of loading until the map is drawn."""
    page.set_default_timeout(180_000)
    page.goto(address)
    page.wait_for_function("document.body.dataset.ready === 'yes'")
    return float(page.evaluate("Number(document.body.dataset.painted)"))


def frames(page: Any) -> dict[str, float]:
    """Frames per second while the map is dragged, the best of three times, and the processor time of a frame."""
    before = page.locator("#map").screenshot()
    found = []
    for _ in range(3):
        used, began = processor_seconds(), time.perf_counter()
        rate = float(page.evaluate(DRAG, 3.0))
        spent = (processor_seconds() - used) / (rate * (time.perf_counter() - began))
        found.append({"frames_per_second": round(rate, 1), "frame_cpu_ms": round(1000 * spent, 1)})
    assert page.locator("#map").screenshot() != before, "the map did not move"
    return max(found, key=lambda one: one["frames_per_second"]) | {"load": round(os.getloadavg()[0], 1)}


def processor_seconds() -> float:
    """Seconds of processor time that all Chromium processes below this one have used."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, rest = path.read_text().rsplit(")", 1)
            fields, number = rest.split(), int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(number)
            ticks[number] = int(fields[11]) + int(fields[12]) if "chrom" in name else 0
    below, total = [os.getpid()], 0
    while below:
        number = below.pop()
        total += ticks.get(number, 0)
        below += children.get(number, [])
    return total / os.sysconf("SC_CLK_TCK")


def spread(values: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    return {"median": round(statistics.median(values), 2), "p95": round(sorted(values)[int(0.95 * len(values))], 2)}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--examples", type=int, nargs="+", default=[50_000, 100_000, 200_000], help="sizes of the maps"
    )
    return options


def main() -> None:
    """Measure all, and write each result as it is there."""
    counts = parser().parse_args().examples
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found |= machine()
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for count in counts:
            with served(write_run(Path(folder) / f"run{count}", count)) as address:
                page = chromium.new_page(viewport={"width": 1280, "height": 900})
                paint = [opened(page, address) for _ in range(3)]
                entry: dict[str, Any] = {"first_paint_ms": spread(paint)}
                entry |= frames(page)
                page.close()
                entry["search_ms"] = spread(asked(address, "GET", "/api/similar/{}?n=48", [None] * 60))
                bodies = [{"rows": [300 + row], "label": "class 1"} for row in range(100)]
                entry["label_ms"] = spread(asked(address, "POST", "/api/labels", bodies))
                found[str(count)] = entry
                print(count, entry, flush=True)
                write_result(RESULTS, found)


if __name__ == "__main__":
    main()
