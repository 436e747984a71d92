"""Shared by the quality benchmarks: experiments side by side in spawned processes, and facts about the machine."""

from __future__ import annotations

import json
import multiprocessing
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Job:
    """One experiment: a method on a dataset with a preset, a seed and changed settings."""

    dataset: str
    method: str
    seed: int
    preset: str = "paper"
    settings: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    cut: int | None = None
    """Score the largest ``cut`` dimensions of the final metric too."""


def run_job(job: Job, data_dir: Path | None, device: str, threads: int) -> dict[str, Any]:
    """Run one job and return its outcome with the log of its epochs."""
    torch.set_num_threads(threads)
    from semimetric.experiment import evaluate_run, plan, run_experiment
    from semimetric.training import Run, Silent

    class Quiet(Silent):
        def warn(self, message: str) -> None:
            print(f"{job.label}: {message}", file=sys.stderr, flush=True)

    began = time.perf_counter()
    experiment = plan(job.dataset, job.method, job.seed, job.preset, **job.settings)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        outcome = run_experiment(experiment, out, data_dir, device, progress=Quiet())
        history = Run.open(out).history()
        if job.cut:
            outcome["cut"] = evaluate_run(out, data_dir, device, job.cut)["scores"]
    wall = time.perf_counter() - began
    facts = {"label": job.label, "settings": job.settings, "config": experiment.config(), "history": history}
    return outcome | facts | {"run": None, "wall": wall}


def run_jobs(
    jobs: list[Job], data_dir: Path | None, device: str = "auto", workers: int = 1, threads: int = 1
) -> Iterator[dict[str, Any]]:
    """Outcomes in the order in which jobs end; a job that fails is printed and left out."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(run_job, job, data_dir, device, threads): job for job in jobs}
        for done in as_completed(waiting):
            job = waiting[done]
            if done.exception() is not None:
                print(f"{job.label} seed {job.seed}: {done.exception()!r}", file=sys.stderr, flush=True)
                continue
            outcome = done.result()
            print(f"{job.label} seed {job.seed}: {outcome['wall']:.0f} s", file=sys.stderr, flush=True)
            yield outcome


def value_of(text: str) -> Any:
    """A number or a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "processor": platform.machine(),
        "command": " ".join(["python", *(Path(word).name if word.startswith("/") else word for word in sys.argv)]),
    }


def write_result(path: Path | None, value: dict[str, Any]) -> None:
    """Write the result where asked."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rounded(value), indent=1) + "\n")


def rounded(value: Any) -> Any:
    """The same value with five significant digits, which is more than any of these measurements has."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value
