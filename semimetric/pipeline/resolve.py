"""From what a user asks for to a plan: presets, defaults that fit the data, and the settings that are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.core.settings import build_settings
from semimetric.data.benchmarks.registry import check_dataset
from semimetric.data.samples import Kind
from semimetric.encoders import takes_photographs
from semimetric.methods import METHODS
from semimetric.pipeline.linear import linear_components
from semimetric.pipeline.network import NetworkRequest, check_request, choose_network
from semimetric.pipeline.plan import GROUPS, OF_OWN_NETWORK, Material, Plan, refuse_benchmark_settings
from semimetric.pipeline.presets import encoder_values, own_values, preset_values
from semimetric.training.selection import selectable
from semimetric.training.settings import PretrainSettings, TrainingSettings

FEWEST_STEPS = 8
"""Optimiser steps of an epoch on images, at least: one pass over a few hundred images has one or two."""


def resolve_benchmark(
    dataset: str, method: str = "consensus", seed: int = 0, preset: str = "default", **settings: Any
) -> Plan:
    """The plan of a method on a benchmark: a preset, overridden by ``settings``.

    A ``validation_share`` chooses the best model, unless ``selection`` says otherwise.
    """
    check_dataset(dataset)
    METHODS.check(method)
    _check_seed(seed)
    _check_known(method, settings, GROUPS)
    if settings.get("encoder") in ("auto", "none"):
        raise InputError(f"encoder {settings['encoder']!r} is for your own data. Name the encoder of the benchmark.")
    values = preset_values(preset, dataset, method, settings.get("backbone", ""))
    values |= encoder_values(method, settings.get("encoder", values.get("encoder")))
    values = _fitting_defaults(values, settings) | settings
    if "freeze_norm" not in settings and not _trains_pretrained(values):
        values.pop("freeze_norm", None)
    if "mirror" not in settings and values.get("backbone"):
        values.pop("mirror", None)
    if "selection" not in settings and "validation_share" in settings:
        if settings["validation_share"]:
            values["selection"] = "validation"
        elif values.get("selection") == "validation":
            values["selection"] = "last"
    return Plan(method, seed, dataset=dataset, **_built(method, values, GROUPS))


def resolve_own(
    kind: Kind,
    shape: tuple[int, ...],
    labels: Tensor,
    device: torch.device,
    method: str = "consensus",
    seed: int = 0,
    fine_tune: bool = False,
    **settings: Any,
) -> Plan:
    """The plan of a method on a user's own data.

    Defaults that the data does not allow give way: ``k`` is at most the number of other examples, and the last model is
    kept where no class has two labels to select on.

    Parameters
    ----------
    kind, shape : what one example is; photographs have the shape ()
    labels : (N,) class numbers, -1 where unlabelled
    settings : of the network (encoder, which may be a module, weights, side, preprocess), the training and the method
    """
    METHODS.check(method)
    _check_seed(seed)
    refuse_benchmark_settings(settings)
    network = {name: settings.pop(name) for name in OF_OWN_NETWORK if name in settings}
    _check_known(method, settings, {"training": TrainingSettings})
    if settings.get("components"):  # the user decides on the dimensions
        network["frozen_share"] = _no_share(network.get("frozen_share"))
    choice = choose_network(kind, shape, method, _network_request(network, fine_tune), device, len(labels))
    linear = choice.settings.encoder == "none"
    values = _own_values(method, choice.material(kind), len(labels), linear)
    values |= encoder_values(method, choice.settings.encoder)
    if linear:
        values |= linear_components(method, settings.pop("components", None) or None, shape[0])
    built = _built(method, _fitting_defaults(values, settings) | settings, {"training": TrainingSettings})
    training = built["training"]
    if not linear:
        training = _fitting_training(training, choice.material(kind), labels, settings)
    return Plan(
        method,
        seed,
        choice.settings,
        training,
        PretrainSettings(),
        built["method_settings"],
        module=choice.module,
        note=choice.note,
    )


def check_own(method: str, seed: int = 0, **settings: Any) -> None:
    """Refuse settings that fit no data, before any is read; ``resolve_own`` refuses those that do not fit the data."""
    METHODS.check(method)
    _check_seed(seed)
    refuse_benchmark_settings(settings)
    network = {name: settings.pop(name) for name in OF_OWN_NETWORK if name in settings}
    check_request(_network_request(network, fine_tune=False))
    _check_known(method, settings, {"training": TrainingSettings})
    by_encoder = encoder_values(method, network.get("encoder", "auto"))
    refused, any_of = [], [own_values(method, material) | by_encoder for material in get_args(Material)]
    for defaults in [{}, *any_of] if METHODS[method].learns_without_network else any_of:
        try:
            _built(method, _fitting_defaults(defaults, settings) | settings, {"training": TrainingSettings})
        except InputError as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def _fitting_defaults(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults without a momentum of Nesterov's, if the user's optimiser has none."""
    momentum = given.get("optimizer", "sgd") == "sgd" and given.get("momentum", 1.0) != 0
    return {name: value for name, value in defaults.items() if momentum or name != "nesterov"}


def _trains_pretrained(values: Mapping[str, Any]) -> bool:
    """Whether the encoder of a benchmark starts from pretrained weights."""
    return takes_photographs(str(values.get("encoder", ""))) and values.get("weights") != "random"


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be between 0 and 2^63 - 1, got {seed}.")


def _no_share(given: float | None) -> float:
    if given:
        raise InputError(
            f"components sets the dimensions of the embedding, and frozen_share {given} adds those of the frozen "
            "network. Leave one of them out."
        )
    return 0.0


def _network_request(given: Mapping[str, Any], fine_tune: bool) -> NetworkRequest:
    weights = given.get("weights") or None
    if weights == "random":
        raise InputError("weights 'random' is for benchmarks. Name a file, or leave weights out to train from scratch.")
    return NetworkRequest(
        given.get("encoder", "auto"),
        None if weights is None else Path(weights),
        fine_tune,
        given.get("side"),
        given.get("preprocess", "auto"),
        given.get("frozen_share"),
        given.get("mirror", False),
    )


def _check_known(method: str, given: Iterable[str], groups: dict[str, type[Any]]) -> None:
    """Refuse a setting that neither the method nor one of the groups has; name the methods that have it."""
    known = _owners(method, groups)
    for name in given:
        if name not in known:
            others = [other for other, kind in METHODS.items() if name in _names(kind.Settings)]
            owners = f" (it is one of {', '.join(others)})" if others else ""
            raise InputError(f"method {method!r} has no setting {name!r}{owners}; it has: {', '.join(sorted(known))}.")


def _names(kind: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _owners(method: str, groups: dict[str, type[Any]]) -> dict[str, str]:
    """The field of the plan that holds each setting, by the setting's name."""
    owner = {name: group for group, kind in groups.items() for name in _names(kind)}
    for name in _names(METHODS[method].Settings):
        if name in owner:
            raise InputError(f"method {method!r} has a setting {name!r}, which is one of the {owner[name]}. Rename it.")
        owner[name] = "method_settings"
    return owner


def _built(method: str, values: Mapping[str, Any], groups: dict[str, type[Any]]) -> dict[str, Any]:
    """Settings objects by the field of the plan that holds them."""
    owner = _owners(method, groups)
    kinds = groups | {"method_settings": METHODS[method].Settings}
    titles = {"method_settings": f"method {method!r}"}
    return {
        group: build_settings(kind, {n: v for n, v in values.items() if owner[n] == group}, titles.get(group, group))
        for group, kind in kinds.items()
    }


def _own_values(method: str, material: Material, examples: int, linear: bool) -> dict[str, Any]:
    """Defaults for a material; a linear metric takes those of the method alone."""
    kind = METHODS[method].Settings
    values = own_values(method, material)
    if linear:
        values = {name: value for name, value in values.items() if name in _names(kind)}
    neighbors = values.get("k", getattr(kind(), "k", 0))
    return values | ({"k": max(1, min(neighbors, examples - 1))} if neighbors else {})


def _fitting_training(
    training: TrainingSettings, material: Material, labels: Tensor, given: Mapping[str, Any]
) -> TrainingSettings:
    """The training with a selection that the labels allow, and with steps enough to train a network on images."""
    if "selection" not in given and training.selection == "labels" and not selectable(labels):
        training = dataclasses.replace(training, selection="last")
    if material in ("images", "pretrained") and "passes" not in given:
        steps = training.passes * max(1, len(labels) // training.batch_size)
        training = dataclasses.replace(training, passes=training.passes * max(1, ceil(FEWEST_STEPS / steps)))
    return training
