"""Estimators and run folders: ``save`` writes a fitted estimator, ``load`` reads a run of any kind as one."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

import semimetric
from semimetric.core.errors import InputError, RunError
from semimetric.core.locks import locked
from semimetric.estimators.base import MetricEstimator
from semimetric.estimators.linear import APIT, APLLR, ISDML, LRML, SERAPH
from semimetric.estimators.semimetric import SemiMetric
from semimetric.model.folder import LoadedRun, load_run, write_fitted
from semimetric.model.spec import ExampleNames
from semimetric.pipeline.config import run_config
from semimetric.pipeline.plan import Plan
from semimetric.training import Run

ESTIMATORS: dict[str, type[MetricEstimator]] = {
    kind.__name__: kind for kind in (SemiMetric, LRML, SERAPH, ISDML, APLLR, APIT)
}


class VersionWarning(UserWarning):
    """A run was written by other versions than those that read it."""


def save(estimator: MetricEstimator, path: Path | str, names: Any = None) -> None:
    """Write a fitted estimator to a new run folder, from which ``load`` reads it.

    Parameters
    ----------
    estimator : a fitted ``SemiMetric``, ``LRML``, ``SERAPH``, ``ISDML``, ``APLLR`` or ``APIT``
    path : the new folder
    names : (N,) names of the training examples; by default their numbers
    """
    check_is_fitted(estimator)
    if Path(path).exists():
        raise InputError(f"{path} exists, and a run is never overwritten. Choose another path, or remove it.")
    if type(estimator) not in ESTIMATORS.values():
        raise InputError(
            f"{type(estimator).__name__} is a class of your own, which load does not know. Save the estimator that it "
            "is made of."
        )
    fitted, plan = estimator.fitted_, estimator.plan_
    names = tuple(str(name) for name in (range(len(fitted.labels)) if names is None else names))
    if len(names) != len(fitted.labels):
        raise InputError(f"names must be of the {len(fitted.labels)} training examples, got {len(names)}.")
    if len({*names}) < len(names):
        raise InputError(f"names must differ, and {Counter(names).most_common(1)[0][0]!r} is there twice.")
    columns = tuple(str(name) for name in getattr(estimator, "feature_names_in_", ()))
    examples = ExampleNames(names, "", fitted.examples.classes, columns, suggested=fitted.examples.suggested)
    fitted = dataclasses.replace(fitted, examples=examples)
    params = {name: _as_json(value) for name, value in estimator.get_params(deep=False).items()}
    config = run_config("estimator", plan, {"examples": len(names)}, None)
    with locked(Path(path)):
        run = Run.create(Path(path), config | {"estimator": type(estimator).__name__, "params": params})
        write_fitted(run, fitted)
        run.write("result.json", dict(fitted.facts))
        run.seal()


def load(path: Path | str, encoder: nn.Module | None = None, device: str = "auto") -> MetricEstimator:
    """The fitted estimator of a run folder. Nothing in it is executed or unpickled.

    A run of other versions is loaded with a ``VersionWarning`` that says what differs.

    Parameters
    ----------
    path : folder of a run, by ``save``, ``semimetric fit`` on a benchmark, or ``semimetric fit`` on own data
    encoder : your own module, for a run that was trained with one; it gets the weights of the run
    device : "auto", "cpu" or "cuda"

    Returns
    -------
    MetricEstimator
        ``plan_`` has all settings in force. ``get_params`` are those that were given to the estimator or, for a run
        of the command line, those in force.
    """
    found = load_run(Path(path), device, encoder)
    if found.differences:
        warnings.warn(f"{path}: {found.differences}", VersionWarning, stacklevel=2)
    return estimator_of(found, encoder)


def estimator_of(found: LoadedRun, encoder: nn.Module | None = None) -> MetricEstimator:
    """The estimator that a loaded run is."""
    config, fitted = found.config, found.fitted
    plan = dataclasses.replace(Plan.from_dict(config["plan"], config["version"]), module=encoder)
    name, params = config.get("estimator", "SemiMetric"), config.get("params", _params(plan, fitted.spec.side))
    if str(name) not in ESTIMATORS or not isinstance(params, dict):
        raise RunError(
            f"{found.path} is of an estimator {name!r} that this version ({semimetric.__version__}) does not know. "
            f"Load it with the version that wrote it ({config['version']})."
        )
    if encoder is not None:
        params = params | {"encoder": encoder}
    try:
        estimator = ESTIMATORS[name](**params)
    except TypeError as error:
        raise RunError(
            f"{found.path} has settings that this version ({semimetric.__version__}) does not know: {error}. Train it "
            "again."
        ) from error
    estimator.n_features_in_ = prod(fitted.spec.shape)
    if fitted.examples.columns:
        estimator.feature_names_in_ = np.array(fitted.examples.columns, dtype=object)
        estimator.n_features_in_ = len(fitted.examples.columns)
    estimator.adopt(fitted, np.asarray(fitted.examples.classes), plan)
    return estimator


def _params(plan: Plan, side: int) -> dict[str, Any]:
    """Constructor parameters for the settings in force.

    An estimator has none for the split of a benchmark, its softmax pretraining and the start of the paper's networks.
    """
    network = {"weights": None, "fine_tune": False} | plan.own_network()
    settings = dataclasses.asdict(plan.training) | dataclasses.asdict(plan.method_settings)
    if settings["selection"] == "validation":
        del settings["selection"]  # an estimator holds out no validation data
    return network | {
        "method": plan.method,
        "n_components": settings.pop("components", 0) or None,
        "side": side or None,
        "epochs": settings.pop("epochs"),
        "settings": settings,
        "random_state": plan.seed,
    }


def _as_json(value: Any) -> Any:
    """A parameter as JSON; a module becomes "auto", a random generator None."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _as_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(entry) for entry in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return "auto" if isinstance(value, nn.Module) else None
