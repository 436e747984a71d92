"""Shared by the quality benchmarks: experiments side by side in spawned processes, and facts about the machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import platform
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
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
    control: str = ""
    """One of ``CONTROLS``: training examples or labels that are not what a user hopes to have."""
    validate: bool = False
    """Score the last model on withheld training examples; the test set is not touched."""

    def plan(self) -> Any:
        """All settings in force; one that is unknown is refused.

        With ``validate``, 15 % of each class are withheld and the last model is kept; settings may say otherwise.
        """
        from semimetric.pipeline.resolve import resolve_benchmark

        withheld = {"validation_share": 0.15, "selection": "last"} if self.validate else {}
        return resolve_benchmark(self.dataset, self.method, self.seed, self.preset, **(withheld | self.settings))


def run_job(job: Job, data_dir: Path | None, device: str, threads: int) -> dict[str, Any]:
    """Run one job and return its outcome with the log of its epochs."""
    torch.set_num_threads(threads)
    if job.validate:
        return run_on_validation(job, data_dir, device)
    from semimetric.data import load_dataset
    from semimetric.pipeline.benchmark import evaluate_run, fit_benchmark
    from semimetric.training import Run, Silent

    class Brief(Silent):
        def begin(self, epochs: int, done: int) -> None:
            self.every = -(-epochs // MOST_LINES) or 1

        def epoch(self, record: dict[str, Any]) -> None:
            if record["epoch"] % self.every == 0:
                right = record.get("right_pseudo_labels")
                names = "" if right is None else f", {100 * right:.1f} % of the pseudo-labels right"
                print(f"{job.label} seed {job.seed}: epoch {record['epoch']}{names}", file=sys.stderr, flush=True)

        def warn(self, message: str) -> None:
            print(f"{job.label}: {message}", file=sys.stderr, flush=True)

    began = time.perf_counter()
    experiment = job.plan()
    changed = CONTROLS[job.control](experiment, load_dataset(job.dataset, data_dir)) if job.control else {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        outcome = fit_benchmark(experiment, out, data_dir, device, progress=Brief(), **changed)
        history = Run.open(out).history()
        if job.cut:
            outcome["cut"] = evaluate_run(out, data_dir, device, job.cut)["scores"]
        wall = time.perf_counter() - began
        outcome |= head_accuracy(Run.open(out), experiment, data_dir, device)
    facts = {"label": job.label, "settings": job.settings, "validate": False}
    facts |= {"config": experiment.as_dict(), "history": history}
    return outcome | facts | {"run": None, "wall": wall}


def head_accuracy(run: Any, plan: Any, data_dir: Path | None, device: str) -> dict[str, float]:
    """Share of the test examples whose class the head of ``consensus`` names, where it sees the features themselves."""
    from semimetric.data import load_dataset
    from semimetric.methods.baseline import SHARPNESS
    from semimetric.pipeline.benchmark import embed_test
    from semimetric.training import choose_device

    settings = plan.method_settings
    if plan.method != "consensus" or settings.metric == "within" or settings.components or plan.network.side:
        return {}
    tensors, _ = run.read_tensors("model.safetensors")
    dataset, where = load_dataset(plan.dataset, data_dir), choose_device(device)
    embedded = embed_test(run, plan, dataset, where).cpu()
    features = torch.linalg.solve(tensors["metric.factor"].to(embedded.dtype), embedded, left=False)
    head = {name: tensors[f"method.head.{name}"].to(features.dtype) for name in ("weight", "bias")}
    named = tensors["method.classes"][(SHARPNESS * features @ head["weight"].T + head["bias"]).argmax(1)]
    return {"head_accuracy": float((named == dataset.test.labels).double().mean())}


def run_on_validation(job: Job, data_dir: Path | None, device: str) -> dict[str, Any]:
    """Train on what is left after withholding some, and score the model on those."""
    from semimetric.pipeline.data import benchmark_data, load_examples
    from semimetric.pipeline.fit import build_trainer, prepare, pretrain_encoder, score
    from semimetric.training import Silent, choose_device

    history: list[dict[str, Any]] = []

    class Keep(Silent):
        def epoch(self, record: dict[str, Any]) -> None:
            history.append(record)

    began = time.perf_counter()
    experiment = job.plan()
    where = choose_device(device)
    examples = benchmark_data(experiment, load_examples(experiment, data_dir, where))
    data = prepare(experiment, dataclasses.replace(examples, test=None), where).training
    trainer = build_trainer(experiment, data, where, Keep())
    pretrain_encoder(experiment, trainer)
    initial = score(trainer.encoder, trainer.metric, data.validation_inputs, data.validation_labels)
    result = trainer.fit()
    return {
        "label": job.label,
        "seed": job.seed,
        "settings": job.settings,
        "validate": True,
        "config": experiment.as_dict(),
        "initial": initial,
        "final": score(result.encoder, result.metric, data.validation_inputs, data.validation_labels),
        "trust": result.trust,
        "history": history,
        "seconds": result.seconds,
        "wall": time.perf_counter() - began,
    }


def shuffled(plan: Any, dataset: Any) -> dict[str, Any]:
    """Training examples with each other's classes: labels say nothing."""
    labels = dataset.train.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(plan.seed))
    return {"dataset": dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, labels=labels[order]))}


def unbalanced(plan: Any, dataset: Any) -> dict[str, Any]:
    """Classes of the training examples whose sizes fall evenly from the whole to a twentieth, in random order."""
    labels = dataset.train.labels
    generator = torch.Generator().manual_seed(plan.seed)
    classes = torch.unique(labels)
    kept = []
    for place, number in enumerate(classes[torch.randperm(len(classes), generator=generator)]):
        rows = (labels == number).nonzero().flatten()
        share = RAREST ** (place / (len(classes) - 1))
        kept.append(rows[torch.randperm(len(rows), generator=generator)[: round(share * len(rows))]])
    return {"dataset": dataclasses.replace(dataset, train=dataset.train.subset(torch.cat(kept).sort().values))}


def two_unlabelled(plan: Any, dataset: Any) -> dict[str, Any]:
    """Two random classes without any label."""
    from semimetric.pipeline.data import benchmark_data

    data = benchmark_data(plan, dataset)
    classes = torch.unique(dataset.train.labels)
    without = classes[torch.randperm(len(classes), generator=torch.Generator().manual_seed(plan.seed))[:2]]
    return {"dataset": dataset, "labels": torch.where(torch.isin(data.labels, without), -1, data.labels)}


RAREST = 1 / 20
MOST_LINES = 20
"""Of progress that a job prints."""
CONTROLS = {"shuffled": shuffled, "unbalanced": unbalanced, "two unlabelled": two_unlabelled}


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


def what_is_left(jobs: list[Job], path: Path | None) -> tuple[list[dict[str, Any]], list[Job]]:
    """The outcomes that a result file holds already, and the jobs that are not among them.

    A file whose outcomes are of other settings, or of the other set of examples, is refused.
    """
    if path is None or not path.exists():
        return [], jobs
    outcomes: list[dict[str, Any]] = json.loads(path.read_text())["jobs"]
    done = {(outcome["label"], outcome["seed"]): outcome for outcome in outcomes}
    for job in jobs:
        found = done.get((job.label, job.seed))
        if found and (found["settings"], found.get("validate", False)) != (rounded(job.settings), job.validate):
            raise SystemExit(f"{path} holds {job.label} with other settings; choose another --out.")
    return outcomes, [job for job in jobs if (job.label, job.seed) not in done]


def run_and_report(jobs: list[Job], args: Any, table: Callable[[list[dict[str, Any]]], list[list[str]]]) -> None:
    """Run what ``args.out`` does not hold yet, write it after every job, and print the table of all."""
    outcomes, left = what_is_left(jobs, args.out)

    def write() -> None:
        facts = machine() | {"workers": args.workers, "threads": args.threads}
        write_result(args.out, facts | {"table": table(outcomes), "jobs": outcomes})

    for outcome in run_jobs(left, args.data_dir, args.device, args.workers, args.threads):
        outcomes.append(outcome)
        write()
    if not jobs:
        write()
    print("\n".join("| " + " | ".join(line) + " |" for line in table(outcomes)))


def names(known: Collection[str]) -> Callable[[str], list[str]]:
    """What an option makes of names separated by commas; one that is not known is refused."""

    def listed(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(known)}.")
        return found

    return listed


def with_run_options(options: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser with the options of every script that runs jobs."""
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--device", default="auto")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--out", type=Path)
    return options


def value_of(text: str) -> Any:
    """A number or a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def changes(entries: list[str], scope: str) -> dict[str, Any]:
    """The settings of ``--set`` that concern a dataset or row."""
    found = {}
    for entry in entries:
        where, _, assignment = entry.rpartition(":")
        if where in ("", scope):
            name, value = assignment.split("=")
            found[name] = value_of(value)
    return found


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "processor": platform.machine(),
        "command": command(),
    }


def command() -> str:
    """What repeats this run, as it is typed in a shell; files elsewhere are told by their names."""
    words = [re.sub(r"(^|(?<==))/(.*/)?", "", word) for word in sys.argv[1:]]
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def write_result(path: Path | None, value: dict[str, Any]) -> None:
    """Write the result where asked."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rounded(value), indent=1) + "\n")


def rounded(value: Any) -> Any:
    """The same value with five significant digits, more than any measurement here has, and files by their names."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, str):
        return Path(value).name if value.startswith("/") else value
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value
