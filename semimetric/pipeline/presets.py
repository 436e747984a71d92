"""Default settings by dataset and by kind of data; those of a method are in the method's own file."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.settings import build_settings
from semimetric.data.benchmarks.registry import DATASETS
from semimetric.methods import METHODS
from semimetric.methods.defaults import Values
from semimetric.pipeline.plan import Material
from semimetric.training import TrainingSettings

FIXED: dict[str, Values] = {"default": {}, "paper": {"validation_share": 0.15, "selection": "validation"}}
"""Settings of each preset that belong to the protocol; no method overrides them."""


def training_settings(method: str, **changes: Any) -> TrainingSettings:
    """Training settings of a method for your own data.

    Parameters
    ----------
    method : str
        Name of the method.
    **changes
        Settings that replace its defaults.
    """
    return build_settings(TrainingSettings, METHODS.find(method).training_defaults | changes, "training")


def own_values(method: str, material: Material) -> Values:
    """Settings of the method and its training for your own data, where they differ from the general defaults."""
    check_choice(material, get_args(Material), "material")
    kind = METHODS.find(method)
    return kind.training_defaults | kind.defaults_on.get(material, {})


def encoder_values(method: str, encoder: Any) -> Values:
    """Settings of a method that belong to an encoder, whatever the data."""
    return METHODS[method].defaults_with.get(str(encoder), {})


def preset_names() -> tuple[str, ...]:
    """Names of the presets."""
    return tuple(FIXED)


def preset_values(name: str, dataset: str, method: str, backbone: str = "") -> Values:
    """Settings of a preset for a method on a dataset, or on the descriptors that ``backbone`` computes of it."""
    check_choice(name, preset_names(), "preset")
    kind = METHODS.find(method)
    if name == "paper" and not kind.in_paper:
        raise InputError(
            f"preset 'paper' has no settings for method {method!r}, which is not the paper's. Use --preset default."
        )
    presets = DATASETS.find(dataset).presets
    if name == "paper" and name not in presets:
        known = [each for each, spec in DATASETS.items() if name in spec.presets]
        raise InputError(
            f"preset {name!r} has no settings for dataset {dataset!r}; it has them for {', '.join(known)}. "
            "Use --preset default."
        )
    general = dict(presets.get(name, {"encoder": "mlp"} if len(DATASETS[dataset].shape) == 1 else {}))
    material = "descriptors" if general.get("backbone") else "images"
    own = kind.defaults_on.get(dataset, kind.defaults_on.get(material, {}))
    described = kind.defaults_on.get("described", {}) if backbone and own.get("backbone") == "" else {}
    values = kind.training_defaults | own | described
    starts = any(field.name == "start" for field in dataclasses.fields(kind.Settings))
    uniform = {"start": "uniform"} if name == "paper" and starts else {}  # this gives the paper's row Initial
    return general | values | FIXED[name] | uniform
