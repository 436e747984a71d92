"""Settings chosen on validation data by Optuna: a study that can be interrupted, with hopeless trials cut short."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.checks import check_choice
from semimetric.data import apply_in_chunks, build_preprocess
from semimetric.errors import InputError
from semimetric.experiment import encoder_of, load_examples, plan, prepare
from semimetric.files import read_json, write_json
from semimetric.methods import build_method, method_names
from semimetric.own import Task, encoder_for, settings_for
from semimetric.training import Progress, Silent, Trainer, TrainingData, TrainingSettings

HIDDEN_SHARE = 1 / 3
FEWEST_HIDDEN = 2
"""Of the labels of each class so many are hidden to judge by, at least two: one has no other to be near to."""


@dataclass(frozen=True)
class Range:
    """Values from ``low`` to ``high``, whole numbers where both are, evenly in their logarithm where ``log``."""

    low: float
    high: float
    log: bool = False


Space = dict[str, Range | tuple[Any, ...]]
"""For each setting a range or a choice."""

_LR: Space = {"lr": Range(1e-4, 1e-2, log=True)}
_GRAPH: Space = {"k": Range(3, 20), "gamma": Range(0.8, 0.995)}
_LAPLACIAN: Space = {"k": Range(3, 20), "graph_weight": Range(0.1, 30, log=True), "ridge": Range(0.01, 3, log=True)}
_PROPAGATED: Space = _GRAPH | {"graph_weight": Range(0.1, 30, log=True), "dissimilar_weight": Range(0.1, 10, log=True)}

SPACES: dict[str, Space] = {
    "consensus": _LR
    | _GRAPH
    | {
        "head_share": Range(0.0, 1.0),
        "instance": Range(0.0, 1.0),
        "contrast_temperature": Range(0.05, 0.3, log=True),
        "selective": (True, False),
    },
    "affinity-triplets": _GRAPH | {"alpha": Range(30.0, 55.0), "lr": Range(1e-10, 1e-5, log=True)},
    "lrml": _LAPLACIAN,
    "isdml": _LAPLACIAN,
    "seraph": {"eta": Range(1.0, 300.0, log=True), "trace_weight": Range(1e-4, 0.1, log=True), "mu": Range(0.1, 3.0)},
    "apllr": _PROPAGATED | {"shrinkage": Range(0.3, 0.95)},
    "apit": _PROPAGATED | {"slack": Range(0.05, 1.0, log=True)},
    "triplet": _LR | {"margin": Range(0.05, 0.5)},
    "angular": _LR | {"alpha": Range(30.0, 55.0)},
    "exemplar": _LR,
    "rotation": {"lr": Range(1e-5, 1e-2, log=True)},
    "instance": _LR | {"temperature": Range(0.05, 0.5, log=True)},
    "deepcluster": _LR | {"clusters": Range(5, 200, log=True)},
    "synthetic": {"lr": Range(1e-7, 1e-3, log=True)},
}
"""What is tried for each method."""

Trial = Callable[[dict[str, Any], Progress], float]
"""Settings to a score on validation data; the progress is told the score of every epoch."""


def tune(
    method: str, folder: Path, trials: int, run_trial: Trial, about: dict[str, Any], seed: int = 0
) -> dict[str, Any]:
    """Run trials until the study in ``folder`` has so many, and return the best settings with their score.

    A study that was interrupted continues; ``about`` says what it is of, and one of something else is refused.
    """
    optuna = _optuna()
    check_choice(method, method_names(), "method")
    study = _open_study(optuna, folder, about | {"method": method}, seed)

    def objective(trial: Any) -> float:
        return run_trial(suggested(trial, SPACES[method]), _Pruning(optuna, trial))

    done = sum(trial.state.is_finished() for trial in study.trials)
    study.optimize(objective, n_trials=max(0, trials - done), catch=(InputError,))
    finished = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    if not finished:
        raise InputError(f"none of {len(study.trials)} trials came to an end; what they met is in {folder}.")
    best = {
        "score": study.best_value,
        "settings": study.best_params,
        "trials": len(study.trials),
        "complete": len(finished),
    }
    write_json(folder / "best.json", about | {"method": method} | best)
    return best


def _optuna() -> Any:
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError as error:
        raise InputError(
            f"tuning needs the package optuna, which cannot be imported here ({error}). "
            "Install it with: pip install 'semimetric[tune]'."
        ) from error
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna


def _open_study(optuna: Any, folder: Path, about: dict[str, Any], seed: int) -> Any:
    """The study in a folder, or a new one; trials that were killed do not count."""
    asked = folder / "study.json"
    if asked.exists() and read_json(asked) != about:
        raise InputError(f"{folder} holds a study of something else: {read_json(asked)}. Choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    if not asked.exists():
        write_json(asked, about)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.log")))
    study = optuna.create_study(
        storage=storage,
        study_name="semimetric",
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3),
    )
    for trial in study.trials:
        if not trial.state.is_finished():
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def suggested(trial: Any, space: Space) -> dict[str, Any]:
    """Settings that a trial proposes."""
    values: dict[str, Any] = {}
    for name, choices in space.items():
        if isinstance(choices, tuple):
            values[name] = trial.suggest_categorical(name, choices)
        elif isinstance(choices.low, int) and isinstance(choices.high, int):
            values[name] = trial.suggest_int(name, choices.low, choices.high, log=choices.log)
        else:
            values[name] = trial.suggest_float(name, choices.low, choices.high, log=choices.log)
    return values


class _Pruning(Silent):
    """Tells a trial how every epoch scores, and ends it where that is hopeless."""

    def __init__(self, optuna: Any, trial: Any) -> None:
        self._pruned = optuna.TrialPruned
        self._trial = trial

    def epoch(self, record: dict[str, Any]) -> None:
        """Report the score of an epoch."""
        score = validation_score_of(record)
        if score is None or record["epoch"] == 0:
            return
        self._trial.report(score, record["epoch"])
        if self._trial.should_prune():
            raise self._pruned

    def warn(self, message: str) -> None:
        """A trial may go wrong; its score says so."""


def validation_score_of(record: dict[str, Any]) -> float | None:
    """The mean of NMI and Recall@1 on validation data in the log of an epoch."""
    names = ("selection_nmi", "selection_recall@1")
    if any(name not in record for name in names):
        return None
    return float(sum(record[name] for name in names)) / len(names)


class _Best(Silent):
    """Remembers the best score of all epochs, and passes everything on."""

    def __init__(self, onward: Progress) -> None:
        self.onward = onward
        self.best = 0.0

    def epoch(self, record: dict[str, Any]) -> None:
        """Remember and pass on."""
        self.best = max(self.best, validation_score_of(record) or 0.0)
        self.onward.epoch(record)

    def warn(self, message: str) -> None:
        """Pass on."""
        self.onward.warn(message)


def benchmark_trial(
    dataset: str, method: str, seed: int, data_dir: Path | None, device: torch.device, **fixed: Any
) -> Trial:
    """Trials on a benchmark dataset: 15 % of each training class, withheld, is validation data."""
    kept = {"validation_share": 0.15, "selection": "validation"} | fixed
    first = plan(dataset, method, seed, "default", **kept)
    examples = load_examples(first, data_dir, device)

    def run(settings: dict[str, Any], progress: Progress) -> float:
        experiment = plan(dataset, method, seed, "default", **kept | settings)
        data = prepare(experiment, examples, device).data
        encoder = encoder_of(experiment, tuple(data.inputs.shape[1:]))
        return _train(encoder, method, experiment.method_settings, data, experiment.training, seed, device, progress)

    return run


def own_trial(task: Task, device: torch.device) -> Trial:
    """Trials on a user's own data: a third of the labels of each class, hidden, is validation data."""
    rows = hidden_rows(task.labels, torch.Generator().manual_seed(task.seed))
    scaled = apply_in_chunks(build_preprocess(task.choice.preprocess, task.inputs), task.inputs)
    shown = torch.ones(len(scaled), dtype=torch.bool).index_fill(0, rows, False)
    data = TrainingData(scaled[shown], task.labels[shown], scaled[rows], task.labels[rows])

    def run(settings: dict[str, Any], progress: Progress) -> float:
        changes = task.changes | settings | {"selection": "validation"}
        built, training = settings_for(task.method, task.kind, data.labels, changes)
        encoder = encoder_for(task.choice, tuple(task.inputs.shape[1:]), task.seed)
        return _train(encoder, task.method, built, data, training, task.seed, device, progress)

    return run


def hidden_rows(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of a third of the labels of each class, at least two, which leaves as many; other classes hide none."""
    drawn = []
    for name in torch.unique(labels[labels >= 0]):
        rows = (labels == name).nonzero().flatten()
        count = max(FEWEST_HIDDEN, round(HIDDEN_SHARE * len(rows)))
        if len(rows) >= count + FEWEST_HIDDEN:
            drawn.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    if len(drawn) < 2:
        raise InputError(
            f"tuning judges by hidden labels and needs {2 * FEWEST_HIDDEN} labels in each of two classes at least. "
            "Label more examples, or keep the default settings."
        )
    return torch.cat(drawn).sort().values


def _train(
    encoder: Any,
    method: str,
    settings: Any,
    data: TrainingData,
    training: TrainingSettings,
    seed: int,
    device: torch.device,
    progress: Progress,
) -> float:
    best = _Best(progress)
    learner = build_method(method, **dataclasses.asdict(settings))
    Trainer(encoder, learner, data, training, seed, device, progress=best).fit()
    return best.best
