"""Learning again with labels that were given on the page: a new run folder, in a process of its own.

It is fitted from the beginning, with the settings of the run: a network that has learned from few labels has learned
wrong pseudo-labels too, and keeps them (docs/page.md has the measurement). Both runs are judged on new labels alone:
the old one has not learned from these, and for the new one further fits like it, each without a third of them, answer
for that third.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch

from semimetric.core.errors import InputError, SemimetricError
from semimetric.core.files import write_json
from semimetric.data import Collection
from semimetric.model.fitted import FittedModel
from semimetric.model.folder import LoadedRun, load_run
from semimetric.model.origin import has_own_files, named_files
from semimetric.pipeline.benchmark import benchmark_plan, fit_benchmark
from semimetric.pipeline.fit import fit
from semimetric.pipeline.own import OwnData, OwnRequest, check_enough, fit_read, read_own
from semimetric.pipeline.plan import Plan
from semimetric.pipeline.warm import read_start
from semimetric.serve.evaluate import evaluate_examples
from semimetric.serve.labels import given_labels
from semimetric.serve.pictures import Pictures, open_pictures, source_of
from semimetric.training import Run, choose_device

FOLDS = 3
"""Parts of the new labels, each held out from one fit."""

FEWEST = 2 * FOLDS
"""New labels that judge at least."""

Tell = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Judgement:
    """Accuracy of the old and of the new model on ``labels`` labels that neither learned from.

    ``why`` says in a sentence why there is none. ``unused`` are examples whose labels were not used: these were given
    to another content than they have now.
    """

    labels: int = 0
    before: float | None = None
    after: float | None = None
    why: str = ""
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class SamePlan(OwnRequest):
    """A request with all settings of an earlier run."""

    fixed: Plan | None = field(default=None)

    def plan(self, collection: Collection, like: Plan | None = None) -> Plan:
        """The plan of the earlier run; labels that it cannot learn from are refused."""
        assert self.fixed is not None
        check_enough(self.fixed.method, collection)
        return self.fixed


def is_benchmark(loaded: LoadedRun) -> bool:
    """Whether a run is of a benchmark."""
    return bool(loaded.config["kind"] == "benchmark")


def check_can_learn(loaded: LoadedRun, source: Path | None) -> None:
    """Refuse a run whose examples are not on disk, whose settings are not kept, or that names files of a stranger."""
    if loaded.config["kind"] == "estimator":
        raise InputError("the run was saved by an estimator and does not say how it was fitted. Fit it again.")
    if not is_benchmark(loaded):
        source_of(loaded, source)
    if not has_own_files(Run(loaded.path)):
        named = next(filter(None, named_files(loaded.config)))
        raise InputError(
            f"the run names the file {named!r}, and it was not made by you on this machine: what such a run names is "
            "not opened. Export the labels, and learn from them with 'semimetric fit'."
        )


def learn_again(
    run: Path,
    labels: Sequence[str | None],
    out: Path,
    data_dir: Path | None = None,
    source: Path | None = None,
    tell: Tell = lambda _: None,
    judge: bool = True,
    digests: Sequence[str | None] = (),
) -> Judgement:
    """Fit the examples of ``run`` with these labels (N,) into the new folder ``out``, and ``judge`` both runs.

    Whatever goes wrong with the judging, the new run is whole.

    Parameters
    ----------
    labels : of the first examples of the run; those that were added to it meanwhile keep their own
    data_dir, source : as for ``open_pictures``
    tell : is given {"judging": number, "of": count} before each fit that judges
    digests : of the contents that were labelled; a label of an example that has another one now is not used
    """
    loaded = load_run(run, "cpu")
    check_can_learn(loaded, source)
    added = given_labels(loaded.fitted)[len(labels) :]
    labels = [*labels, *(None if label is None else str(label) for label in added)]
    if is_benchmark(loaded):
        _benchmark_again(loaded, labels, out, data_dir)
        return Judgement(why="The test set of the benchmark judges.")
    request, pictures = request_of(loaded), open_pictures(loaded, source=source)
    known = [*digests, *([None] * (len(labels) - len(digests)))]
    stale = [row for row, label in enumerate(labels) if label and known[row] not in (None, pictures.digest(row))]
    unused = tuple(loaded.fitted.examples.names[row] for row in stale)
    labels = [None if row in {*stale} else label for row, label in enumerate(labels)]
    own = _read(loaded, request, source, labels, pictures)
    kept = dataclasses.replace(own.data)  # fitting releases its data
    fit_read(request, own, source_of(loaded, source), out)
    if not judge:
        return Judgement(why="Nothing was judged, as you asked.", unused=unused)
    try:
        judged = _judge(loaded, dataclasses.replace(own, data=kept), labels, tell)
    except Exception as error:  # the new run is whole
        judged = Judgement(why=judging_failed(sentence_of(error)))
    return dataclasses.replace(judged, unused=unused)


def judging_failed(why: str) -> str:
    """That a new run is whole, and why nothing is known of its accuracy."""
    return f"The new model is in use, but judging it failed: {why}"


def request_of(loaded: LoadedRun) -> OwnRequest:
    """The settings of a run; one that had started from another has few epochs, and gets those of a new fit."""
    plan = Plan.from_dict(loaded.config["plan"], loaded.config["version"])
    if "from" not in loaded.config["data"]:
        return SamePlan(fixed=plan)
    fine_tune = bool(plan.own_network().get("fine_tune"))
    return OwnRequest(plan.method, plan.seed, fine_tune=fine_tune, settings=read_start(loaded.path).settings(()))


def _read(
    loaded: LoadedRun, request: OwnRequest, source: Path | None, labels: Sequence[str | None], pictures: Pictures
) -> OwnData:
    """The examples of a run with these labels; all of them must still be there."""
    examples = loaded.fitted.examples
    if pictures.paths is None and pictures.features is None:
        raise InputError(pictures.missing)
    given = (examples.names, tuple(labels), _all_there(pictures), pictures.features)
    columns_of = examples.columns or pictures.columns
    suggested = _suggested(loaded, labels)
    schema, digests = loaded.fitted.schema, pictures.digests
    collection = Collection(*given, columns_of, {}, schema=schema, suggested=suggested, digests=digests)
    columns = examples.label_column or None, examples.id_column or None
    own = read_own(request, collection, source_of(loaded, source), columns)
    lost = sorted({*examples.names} - {*own.collection.names})
    if lost:
        raise InputError(f"{len(lost)} examples of the run cannot be read any more, such as {lost[0]}. Put them back.")
    return own


def _all_there(pictures: Pictures) -> tuple[Path, ...] | None:
    """All photographs; names that lead out of the folder are refused."""
    if pictures.paths is None:
        return None
    found = tuple(path for path in pictures.paths if path is not None)
    if len(found) < pictures.count:
        raise InputError(
            f"{pictures.count - len(found)} examples have names that lead out of --source, and such files are not "
            "opened. Fit the folder again with 'semimetric fit'."
        )
    return found


def _suggested(loaded: LoadedRun, labels: Sequence[str | None]) -> frozenset[str]:
    """Names of examples whose labels are no random sample: those of the run, and all that were labelled on the page."""
    names = loaded.fitted.examples.names
    return frozenset(names[row] for row in (*loaded.fitted.examples.suggested, *_new(loaded, labels)))


def _new(loaded: LoadedRun, labels: Sequence[str | None]) -> list[int]:
    """Rows with a label that had none in the run."""
    before = loaded.fitted.labels.tolist()
    return [row for row, label in enumerate(labels) if label is not None and before[row] < 0]


def _judge(loaded: LoadedRun, own: OwnData, labels: Sequence[str | None], tell: Tell) -> Judgement:
    """Score the run, and fits like the new one without a part of the new labels, on these labels."""
    rows = sorted(_new(loaded, labels), key=lambda row: str(labels[row]))
    if len(rows) < FEWEST:
        return Judgement(why=f"{FEWEST} new labels are needed to judge by; there are {len(rows)}.")
    right = 0
    try:
        for number in range(FOLDS):
            tell({"judging": number + 1, "of": FOLDS})
            held = rows[number::FOLDS]  # every class in every part
            known = own.data.labels.clone()
            known[held] = -1
            data = dataclasses.replace(own.data, labels=known)
            right += _right(fit(own.plan, data, choose_device("auto")), held, labels)
    except SemimetricError as error:
        return Judgement(why=f"Without a third of the new labels nothing can be learned: {error}")
    before = _right(loaded.fitted, rows, labels) / len(rows) if loaded.fitted.examples.classes else None
    return Judgement(len(rows), before, right / len(rows))


def _right(fitted: FittedModel, rows: Sequence[int], labels: Sequence[str | None]) -> int:
    """How many of these examples a model names by their labels; a class that it does not know is a mistake."""
    fitted.check_predicts()
    names = [fitted.examples.names[row] for row in rows]
    found = evaluate_examples(fitted, fitted.embeddings[list(rows)], None, [labels[row] for row in rows], names)
    return found.examples - len(found.mistakes)


def _benchmark_again(loaded: LoadedRun, labels: Sequence[str | None], out: Path, data_dir: Path | None) -> None:
    plan = benchmark_plan(Run(loaded.path))
    fitted = loaded.fitted
    numbers_of = zip(fitted.examples.classes, fitted.posteriors.classes.tolist(), strict=True)
    classes = {str(name): number for name, number in numbers_of}
    new = sorted({label for label in labels if label is not None} - {*classes})
    if new:
        raise InputError(f"the benchmark {plan.dataset} has no class {new[0]!r}, and its classes are fixed.")
    numbers = torch.tensor([-1 if label is None else classes[label] for label in labels])
    fit_benchmark(plan, out, data_dir, labels=numbers)


def sentence_of(error: BaseException) -> str:
    """What went wrong, as a sentence; an error that nobody foresaw says of what kind it is."""
    return str(error) if isinstance(error, SemimetricError | OSError) else f"{type(error).__name__}: {error}"


def _print(page: TextIO, told: dict[str, Any]) -> None:
    """A line of JSON for the page."""
    page.write(f"{json.dumps(told)}\n")
    page.flush()


def main(request: Path) -> int:
    """Learn as a JSON file asks for, and write the judgement, or what went wrong, to the file that it names."""
    wanted = json.loads(request.read_text(encoding="utf-8"))
    answer = Path(wanted["answer"])
    try:
        data_dir, source = (None if wanted[name] is None else Path(wanted[name]) for name in ("data_dir", "source"))
        tell = partial(_print, sys.stdout)
        with redirect_stdout(sys.stderr):  # what a method or an encoder prints is no line for the page
            paths = (Path(wanted["out"]), data_dir, source)
            run, labels, digests = Path(wanted["run"]), wanted["labels"], wanted["digests"]
            judged = learn_again(run, labels, *paths, tell, wanted["judge"], digests)
    except Exception as error:  # the page tells it, whatever it is
        write_json(answer, {"error": sentence_of(error)})
        return 2
    write_json(answer, dataclasses.asdict(judged))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then ends this process
    raise SystemExit(main(Path(sys.argv[1])))
