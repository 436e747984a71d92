"""``semimetric fit DATA`` and ``semimetric tune DATA``: a user's own folder or table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import typer

from semimetric.cli.console import counted, print_json, say, showing_progress, stderr
from semimetric.core.errors import InputError
from semimetric.data import Collection, dataset_names, read_collection
from semimetric.data.labels import number_labels
from semimetric.estimators.runs import fit_collection, read_kept, samples_of
from semimetric.estimators.semimetric import SemiMetric, seed_of
from semimetric.pipeline.choice import choose
from semimetric.pipeline.learn import Task
from semimetric.pipeline.protocol import ProtocolSettings
from semimetric.training import PretrainSettings, choose_device

OF_THE_NETWORK = ("encoder", "weights", "side", "preprocess")
"""Options of a benchmark's protocol that mean the same for own data."""

INSTEAD = {
    "labels_per_class": "label as many examples as you like",
    "backbone": "name the pretrained network with --encoder and its file with --weights",
}
"""What to do instead of giving an option that is for benchmarks; else: leave it out."""


def own_estimator(method: str, seed: int, device: str, fine_tune: bool, given: dict[str, Any]) -> SemiMetric:
    """The estimator that the options describe; those that are for benchmarks alone are refused."""
    kinds = (ProtocolSettings, PretrainSettings)
    of_benchmarks = {field.name for kind in kinds for field in dataclasses.fields(kind)} - set(OF_THE_NETWORK)
    refuse_of_benchmarks(**{name: True for name in given if name in of_benchmarks})
    network = {name: given[name] for name in OF_THE_NETWORK if name in given}
    settings = {name: value for name, value in given.items() if name not in (*OF_THE_NETWORK, "components", "epochs")}
    return SemiMetric(
        method,
        n_components=given.get("components") or None,
        fine_tune=fine_tune,
        epochs=given.get("epochs"),
        settings=settings,
        device=device,
        random_state=seed,
        **network,
    )


def refuse_of_benchmarks(**given: object) -> None:
    """Refuse options, by name, that have a value although they mean nothing for data of one's own."""
    for name in (name for name, value in given.items() if value):
        flag = "--" + name.replace("_", "-")
        instead = INSTEAD.get(name, "leave it out")
        raise InputError(f"{flag} is for benchmark datasets; with data of your own {instead}.")


def fit_own(
    estimator: SemiMetric,
    data: Path,
    out: Path,
    labels: Path | None,
    label_column: str | None,
    id_column: str | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Say what was found, learn from it, and say what became of it."""
    collection = read_own(data, labels, label_column, id_column)
    if not as_json:
        say(collection.summary())
    with showing_progress("continue with the same command and --resume") as progress:

        def tell_damaged(kept: Collection) -> None:
            if not as_json and len(kept) < len(collection):
                progress.end()
                say(f"{len(collection) - len(kept)} of these cannot be decoded. What remains:\n{kept.summary()}")

        columns = (label_column, id_column)
        outcome = fit_collection(estimator, collection, data, out, resume, progress, tell_damaged, columns)
    if as_json:
        print_json(outcome)
    elif not outcome.get("interrupted"):
        _tell(outcome)
    if outcome.get("interrupted"):
        stderr.print(
            f"interrupted after epoch {outcome['epochs']}; the model so far is in {out}. Continue with the same "
            "command and --resume.",
            highlight=False,
            markup=False,
        )
        raise typer.Exit(130)


def read_own(data: Path, labels: Path | None, label_column: str | None, id_column: str | None) -> Collection:
    """A user's data; the name of a benchmark dataset is no such thing."""
    if str(data) in dataset_names() and not data.exists():
        raise InputError(f"there is no folder or file {data}; for the benchmark dataset say: --dataset {data}")
    return read_collection(data, labels, label_column, id_column)


def _tell(outcome: dict[str, Any]) -> None:
    found = outcome["found"]
    if outcome.get("trust"):
        say(f"Pseudo-labels after epoch {outcome['trust']['epoch']}: {outcome['trust']['sentence']}")
    if outcome["guards"]:
        say(f"guards at work (see docs/methods/{outcome['method']}.md): {', '.join(outcome['guards'])}")
    took = ""
    if "epochs" in outcome:
        seconds = outcome["seconds"]
        seconds = f"{seconds:.{0 if seconds >= 10 else 1}f} s on {outcome['device']}"
        took = f"{counted(outcome['epochs'], 'epoch')}, {seconds}, "
    say(
        f"{outcome['method']}: {found['examples']} examples in {outcome['components']} dimensions, {took}run in "
        f"{outcome['run']}"
    )
    say(f"next: semimetric search {outcome['run']} QUERY, or predict, embed, suggest, index, export")


def own_task(
    estimator: SemiMetric, data: Path, labels: Path | None, label_column: str | None, id_column: str | None
) -> Task:
    """What would be learned from own data, for tuning."""
    device = choose_device(estimator.device)
    collection = read_own(data, labels, label_column, id_column)
    samples, seed = samples_of(collection), seed_of(estimator.random_state)
    choice = choose(samples.kind, samples.shape(), estimator.method, estimator.wishes(), device)
    sight = choice.sight(seed)
    with showing_progress() as progress:
        kept, inputs = read_kept(collection, samples, sight, device, progress)
    _, numbers = number_labels(kept.labels)
    return estimator.task(samples, inputs, numbers, choice, sight, seed)
