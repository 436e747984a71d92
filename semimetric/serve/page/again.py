"""Learning again with labels that were given on the page: the same settings, a new run folder, a process of its own."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from semimetric.core.errors import InputError, SemimetricError
from semimetric.data import Collection, load_dataset
from semimetric.model.folder import LoadedRun, load_run
from semimetric.model.origin import has_own_files, named_files
from semimetric.pipeline.benchmark import benchmark_plan
from semimetric.pipeline.config import run_config, run_opener
from semimetric.pipeline.data import benchmark_data
from semimetric.pipeline.fit import fit
from semimetric.pipeline.own import OwnRequest, check_enough, fit_own
from semimetric.pipeline.plan import Plan
from semimetric.serve.pictures import Pictures, open_pictures, source_of
from semimetric.training import Run, choose_device


@dataclass(frozen=True)
class SamePlan(OwnRequest):
    """A request with all settings of an earlier run."""

    fixed: Plan | None = field(default=None)

    def plan(self, collection: Collection) -> Plan:
        """The plan of the earlier run; labels that it cannot learn from are refused."""
        assert self.fixed is not None
        check_enough(self.fixed.method, collection)
        return self.fixed


def is_benchmark(loaded: LoadedRun) -> bool:
    """Whether a run is of a benchmark."""
    return "dataset" in loaded.config or loaded.config.get("kind") == "benchmark"


def check_can_learn(loaded: LoadedRun, source: Path | None) -> None:
    """Refuse a run whose examples are not on disk, or that names files which the user did not name."""
    if loaded.config.get("kind") == "estimator":
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
) -> dict[str, Any]:
    """Fit the examples of ``run`` with these labels (N,) and its settings, into the new folder ``out``.

    Parameters
    ----------
    data_dir, source : as for ``open_pictures``

    Returns
    -------
    dict
        The outcome, as in ``result.json``.
    """
    loaded = load_run(run, "cpu")
    check_can_learn(loaded, source)
    if is_benchmark(loaded):
        return _benchmark_again(loaded, labels, out, data_dir)
    plan = Plan.from_dict(loaded.config["plan"], loaded.config.get("version", "unknown"))
    examples = loaded.fitted.examples
    pictures = open_pictures(loaded, source=source)
    if pictures.missing:
        raise InputError(pictures.missing)
    given = (examples.names, tuple(labels), _all_there(pictures), pictures.features)
    columns_of = examples.columns or pictures.columns
    suggested = _suggested(loaded, labels)
    collection = Collection(*given, columns_of, {}, schema=loaded.fitted.schema, suggested=suggested)
    columns = examples.label_column or None, examples.id_column or None
    return fit_own(SamePlan(fixed=plan), collection, source_of(loaded, source), out, columns=columns)


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
    names, before = loaded.fitted.examples.names, loaded.fitted.labels.tolist()
    new = (row for row, label in enumerate(labels) if label is not None and before[row] < 0)
    return frozenset(names[row] for row in (*loaded.fitted.examples.suggested, *new))


def _benchmark_again(
    loaded: LoadedRun, labels: Sequence[str | None], out: Path, data_dir: Path | None
) -> dict[str, Any]:
    plan = benchmark_plan(Run(loaded.path))
    fitted = loaded.fitted
    numbers_of = zip(fitted.examples.classes, fitted.posteriors.classes.tolist(), strict=True)
    classes = {str(name): number for name, number in numbers_of}
    new = sorted({label for label in labels if label is not None} - {*classes})
    if new:
        raise InputError(f"the benchmark {plan.dataset} has no class {new[0]!r}, and its classes are fixed.")
    data = benchmark_data(plan, load_dataset(plan.dataset, data_dir))
    numbers = torch.tensor([-1 if label is None else classes[label] for label in labels])
    data = dataclasses.replace(data, labels=numbers)
    config = run_config("benchmark", plan, {"source": plan.dataset}, None)
    return fit(plan, data, choose_device("auto"), run_opener(out, config, False)).facts


def main(request: Path) -> int:
    """Learn as a JSON file asks for; an error is one sentence on standard error."""
    wanted = json.loads(request.read_text(encoding="utf-8"))
    data_dir, source = (None if wanted[name] is None else Path(wanted[name]) for name in ("data_dir", "source"))
    try:
        learn_again(Path(wanted["run"]), wanted["labels"], Path(wanted["out"]), data_dir, source)
    except (SemimetricError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
