"""The plan of a fit: every setting in force, resolved once and passed on as objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import semimetric
from semimetric.core.checks import check_at_least, check_choice
from semimetric.core.errors import InputError, RunError
from semimetric.core.files import check_input, sha256_of
from semimetric.core.settings import build_settings, setting
from semimetric.encoders.packages import package_of, packaged_weights
from semimetric.encoders.registry import encoder_names, takes_photographs
from semimetric.methods.registry import METHODS
from semimetric.training.settings import PretrainSettings, TrainingSettings

if TYPE_CHECKING:
    from torch import nn

RunKind = Literal["benchmark", "own data", "estimator"]
Material = Literal["vectors", "images", "descriptors", "pretrained"]
"""What the encoder sees: vectors, images, features of a frozen network, or images by a pretrained encoder."""


@dataclass(frozen=True)
class SplitSettings:
    """Which labels of a benchmark are known, and what is held out."""

    labels_per_class: int = setting(10, "Labelled examples of each class; all other training examples are unlabelled.")
    validation_share: float = setting(
        0.0, "Share of the training data that is held out for validation; the best model is then chosen on it."
    )
    withheld: Literal["examples", "classes"] = setting(
        "examples", "What is held out: examples of each class, or whole classes (for search among new classes)."
    )

    def __post_init__(self) -> None:
        check_choice(self.withheld, ("examples", "classes"), "withheld")


@dataclass(frozen=True)
class NetworkSettings:
    """The encoder, and what happens to an example before it."""

    encoder: str = setting(
        "small-cnn",
        f"Encoder: auto (own data), {', '.join(encoder_names())}, timm:NAME, torchvision:NAME, transformers:ORG/NAME.",
    )
    backbone: str = setting("", "Frozen pretrained network; its features are the inputs of the encoder.")
    weights: str = setting("", "File with the weights of the pretrained network; 'random' for none.")
    descriptors: str = setting("", "Cache file for the features of the backbone.")
    frozen_share: float = setting(
        0.0,
        "Share of the backbone's own features in squared distances, from 0 to below 1 (own data: 0.5).",
    )
    side: int = setting(0, "Side in pixels to which photographs are brought; 0 takes the dataset's own.")
    fit: Literal["crop", "squash"] = setting("crop", "How photographs are brought to a square.")
    mirror: bool = setting(
        False,
        "Average the features of an image with those of its mirror image outside of training, which takes twice the "
        "time; not for digits or letters.",
    )
    init: Literal["gaussian", "he"] = setting("gaussian", "Initial weights of the paper's networks.")
    preprocess: Literal["none", "standardize", "mean-image", "whiten", "imagenet"] = setting(
        "standardize", "Scaling of the inputs."
    )

    def __post_init__(self) -> None:
        check_choice(self.fit, ("crop", "squash"), "fit")
        check_at_least(self.side, 0, "side")
        check_frozen_share(self.frozen_share)
        if self.frozen_share and not self.backbone:
            raise InputError(
                f"frozen_share is for the features of a frozen pretrained network, and there is none; got "
                f"{self.frozen_share}. Leave it out."
            )
        if self.mirror and self.backbone:
            raise InputError(
                f"mirror is for a network that is trained, and {self.backbone} is frozen here. Leave mirror out, or "
                "train a network: with --fine-tune, which is slow without a GPU, or another --encoder."
            )
        if self.backbone and not takes_photographs(self.backbone):
            raise InputError(
                f"backbone {self.backbone!r} is no pretrained network. Use efficientnet-lite2, googlenet, timm:NAME, "
                "torchvision:NAME or transformers:ORG/NAME, or train it as the encoder."
            )
        if self.backbone and takes_photographs(self.encoder):
            raise InputError(
                f"encoder {self.encoder!r} takes photographs, but backbone {self.backbone!r} turns them into features. "
                "Leave the backbone out to train the encoder, or set encoder to linear and preprocess to none."
            )
        if self.descriptors and not self.backbone:
            raise InputError(
                "descriptors caches the features of a backbone, and there is none. Set backbone, for example to "
                "googlenet-rmac, or leave descriptors out."
            )
        if takes_photographs(self.encoder) and self.preprocess != "imagenet":
            raise InputError(
                f"encoder {self.encoder!r} expects preprocess 'imagenet', got {self.preprocess!r}. Set preprocess to "
                "imagenet."
            )

    def weights_file(self) -> Path | None:
        """The weights of the pretrained network; None for a random network, or where there is no such network."""
        network = self.backbone or self.encoder
        if self.weights == "random" or not takes_photographs(network):
            return None
        if not self.weights and package_of(network) is not None:
            return packaged_weights(network)
        if not self.weights:
            raise InputError(
                f"weights are missing: name the file with those of {network!r}, or say 'random' for an untrained one."
            )
        return Path(self.weights)

    def weights_digest(self) -> str | None:
        """SHA-256 of that file."""
        path = self.weights_file()
        return None if path is None else digest_of_weights(path)


def check_frozen_share(share: float) -> None:
    """Refuse a share of the frozen features that leaves nothing to learn."""
    if not 0.0 <= share < 1.0:
        raise InputError(f"frozen_share must be from 0 to below 1, got {share}.")


def digest_of_weights(path: Path) -> str:
    """SHA-256 of a weights file."""
    check_input(path, "a file with the weights of a network")
    return sha256_of(path)


@dataclass(frozen=True)
class Plan:
    """All settings of one fit.

    Parameters
    ----------
    dataset, split : of a benchmark; empty and None for a user's own data
    module : the user's own network, which ``network.encoder`` names; it is not part of the config
    note : a sentence for people about the choice of the network
    """

    method: str
    seed: int
    network: NetworkSettings
    training: TrainingSettings
    pretraining: PretrainSettings
    method_settings: Any
    dataset: str = ""
    split: SplitSettings | None = None
    module: nn.Module | None = field(default=None, compare=False)
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.pretraining.pretrain_epochs and not METHODS[self.method].needs.labels:
            raise InputError(
                f"pretrain_epochs trains with labels, and method {self.method!r} uses none. Set pretrain_epochs to 0."
            )

    @property
    def is_linear(self) -> bool:
        """Whether a metric is learned on the inputs themselves, without a network."""
        return self.network.encoder == "none"

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        shown = [entry.name for entry in dataclasses.fields(self) if entry.compare]
        values = {name: getattr(self, name) for name in shown}
        return {name: dataclasses.asdict(v) if dataclasses.is_dataclass(v) else v for name, v in values.items()}  # type: ignore[arg-type]

    def as_options(self) -> dict[str, dict[str, Any]]:
        """The settings as options of ``semimetric fit``, by group; together they make this plan again."""
        values = {name: dict(group) for name, group in self.as_dict().items() if isinstance(group, dict)}
        training = {} if self.is_linear else values["training"]
        method = {f"method {self.method}": values["method_settings"]}
        if self.split is not None:
            first = {"dataset": self.dataset, "method": self.method, "seed": self.seed}
            general = {"network": values["network"], "split": values["split"], "training": training}
            return {"fit": first} | general | {"pretraining": values["pretraining"]} | method
        first = {"method": self.method, "seed": self.seed}
        return {"fit": first, "network": self.own_network(), "training": training} | method

    def own_network(self) -> dict[str, Any]:
        """The network as a user asks for it on their own data; what is empty is left out."""
        network = self.network
        asked = {
            "encoder": network.backbone or network.encoder,
            "weights": network.weights,
            "fine_tune": not network.backbone and bool(network.weights),
            "side": network.side,
            "preprocess": network.preprocess,
            "mirror": network.mirror,
        }
        shared = {"frozen_share": network.frozen_share} if network.backbone else {}
        return {name: value for name, value in asked.items() if value} | shared

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], version: str = "unknown") -> Plan:
        """The plan of a run; ``version`` is the one that wrote it, for the error."""
        try:
            groups = groups_of(values["method"])
            built: dict[str, Any] = {
                name: None if values[name] is None else build_settings(kind, values[name], name)
                for name, kind in groups.items()
            }
            return cls(values["method"], values["seed"], dataset=values["dataset"], **built)
        except (KeyError, TypeError, AttributeError, InputError) as error:
            raise RunError(
                f"the run's settings do not fit this version ({semimetric.__version__}): {error}. It was written by "
                f"version {version}."
            ) from error


GROUPS: dict[str, type[Any]] = {
    "network": NetworkSettings,
    "split": SplitSettings,
    "training": TrainingSettings,
    "pretraining": PretrainSettings,
}
"""Settings that do not belong to a method, by the field of ``Plan`` that holds them."""


def groups_of(method: str) -> dict[str, type[Any]]:
    """The classes of all settings of a fit, by the field of ``Plan`` that holds them."""
    return GROUPS | {"method_settings": METHODS.find(method).Settings}


OF_OWN_NETWORK = ("encoder", "weights", "side", "preprocess", "frozen_share", "mirror")
"""Network settings that a user gives for their own data."""

FOR_BENCHMARKS = {
    "labels_per_class": "label as many examples as you like",
    "backbone": "name the pretrained network as encoder and its file as weights",
}
"""What to do instead of giving a setting that is for benchmarks; else: leave it out."""


def refuse_benchmark_settings(given: Iterable[str], shown: Callable[[str], str] = str) -> None:
    """Refuse settings that mean nothing for a user's own data; ``shown`` is how a message names one."""
    groups = (NetworkSettings, SplitSettings, PretrainSettings)
    names = {field.name for group in groups for field in dataclasses.fields(group)} - {*OF_OWN_NETWORK}
    for name in given:
        if name in names:
            refuse_for_own(name, shown)


def refuse_for_own(name: str, shown: Callable[[str], str] = str) -> None:
    """Refuse one option that is for benchmarks, and say what to do instead."""
    raise InputError(
        f"{shown(name)} is for benchmark datasets; with data of your own {FOR_BENCHMARKS.get(name, 'leave it out')}."
    )
