"""A fit that starts from a run: with its network, metric and head, after labels or examples were added."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.core.files import sha256_of
from semimetric.data import Preprocess, restore_preprocess
from semimetric.data.samples import Kind
from semimetric.data.schema import Schema
from semimetric.encoders.packages import package_of
from semimetric.model.fields import read_fields
from semimetric.model.folder import explaining, read_config, read_spec
from semimetric.model.origin import has_own_files
from semimetric.model.schema import read_schema
from semimetric.model.spec import ModelSpec
from semimetric.pipeline.plan import Plan
from semimetric.training import Run

DEFAULTS = {"method": "consensus", "encoder": "auto"}
"""What a user asks for who does not choose; the run's own then holds."""

SHORTER = 8
"""A fit that starts from a run takes one in so many epochs."""


@dataclass(frozen=True)
class Start:
    """What a fit takes over from a run.

    Parameters
    ----------
    path, digest : folder of the run, and SHA-256 of its model
    plan, spec : its settings, and what its model is built of
    preprocess, tensors : scaling of its inputs; its encoder, metric and method
    classes : names of the classes that it learned, in the order of its head
    schema : how the columns of its table became inputs; those of a further table must become the same
    own_files : whether the weights that it names are those that this user gave to it
    """

    path: Path
    digest: str
    plan: Plan
    spec: ModelSpec
    preprocess: Preprocess
    tensors: dict[str, Tensor]
    classes: tuple[Any, ...]
    schema: Schema | None = None
    own_files: bool = True

    def settings(self, given: Container[str]) -> dict[str, Any]:
        """The run's settings by name, as a user gives them; how long to train is decided anew.

        A file of weights that a run of others names is refused, unless the user has ``given`` one.
        """
        network = {name: value for name, value in self.plan.own_network().items() if name != "fine_tune"}
        if not self.own_files and "weights" in network and "weights" not in given:
            named = network.pop("weights")
            if package_of(network["encoder"]) is None:
                raise InputError(
                    f"{self.path} names the weights {named!r}, and it was not made by you on this machine: a file that "
                    "such a run names is not opened. Name it yourself with --weights FILE."
                )
        training = dataclasses.asdict(self.plan.training)
        for name in ("epochs", "hold_back"):
            del training[name]
        return network | training | dataclasses.asdict(self.plan.method_settings)

    def check_request(self, kind: Kind, method: str, encoder: Any) -> None:
        """Refuse data of another kind, and another method or network than those of the run; None is not asked for."""
        known = {"data": self.spec.kind, "method": self.plan.method, "encoder": self.plan.own_network()["encoder"]}
        for name, asked in {"data": kind, "method": method, "encoder": encoder}.items():
            if asked not in (None, DEFAULTS.get(name), known[name]):
                raise InputError(
                    f"no fit can start from {self.path}: its {name} is {known[name]}, and {asked} is asked for. Use "
                    "the same, or fit without --from."
                )

    def shortened(self, plan: Plan, given: Container[str]) -> Plan:
        """The plan with fewer epochs, and with no label held out, as the run has seen them; ``given`` settings stay."""
        shorter = {"epochs": ceil(plan.training.epochs / SHORTER), "hold_back": 0.0}
        changed: dict[str, Any] = {name: value for name, value in shorter.items() if name not in given}
        return dataclasses.replace(plan, training=dataclasses.replace(plan.training, **changed))

    def check(self, plan: Plan, spec: ModelSpec) -> None:
        """Refuse a fit of another method, of other data, or with another network."""
        pairs = {"method": (self.plan.method, plan.method)}
        for name in ("kind", "shape", "inputs", "preprocess", "encoder", "module", "backbone", "side", "fit", "mirror"):
            pairs[name] = (getattr(self.spec, name), getattr(spec, name))
        differing = [f"{name} was {old!r} and is {new!r}" for name, (old, new) in pairs.items() if old != new]
        if differing:
            raise InputError(
                f"{self.path} cannot be started from: {'; '.join(differing)}. Use the same, or fit without it."
            )

    def known(self, classes: Sequence[Any]) -> Tensor:
        """The number in the run of each of these classes, -1 for a new one."""
        places = {str(name): place for place, name in enumerate(self.classes)}
        return torch.tensor([places.get(str(name), -1) for name in classes], dtype=torch.int64)


def read_start(path: Path) -> Start:
    """What a fit takes over from a run of own data; other runs are refused."""
    run = Run.open(path)
    config = read_config(run)
    plan = Plan.from_dict(config["plan"], config.get("version", "unknown")) if "plan" in config else None
    if plan is None or plan.dataset or plan.is_linear or not run.has("examples.json"):
        why = "has no plan: it is of format 1" if plan is None else "has not ended its training"
        why = "is of a benchmark" if plan and plan.dataset else "has no network" if plan and plan.is_linear else why
        raise InputError(f"{path} {why}, so no fit can start from it. Name a finished run with a network on own data.")
    tensors, _ = run.read_tensors("model.safetensors")
    spec, scaling = read_spec(run), run.read_tensors("preprocess.safetensors")[0]
    with explaining(run):
        preprocess, schema = restore_preprocess(spec.preprocess, scaling), read_schema(run, prod(spec.shape))
    classes = tuple(read_fields(run, "examples.json").get("classes", ()))
    found = (plan, spec, preprocess, tensors, classes, schema, has_own_files(run))
    return Start(path, sha256_of(path / "model.safetensors"), *found)
