"""The run folder of a learned model: files that are whole and hold no code, and the model back from them.

Beside what training leaves there (``semimetric.training.run``):

model.json            what the model is built of: kind of inputs, scaling, encoder, backbone
backbone.safetensors  the pretrained network that describes photographs, where there is one
examples.safetensors  embeddings, labels and class posteriors of the examples
examples.json         their names, the folder they came from, and the names of the classes
"""

from __future__ import annotations

import copy
import dataclasses
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn
import torch
from torch import Tensor, nn

import semimetric
from semimetric.data import restore_preprocess
from semimetric.encoders import rebuild_encoder
from semimetric.errors import InputError, RunError
from semimetric.graph import Posteriors
from semimetric.metric import Metric
from semimetric.own.learned import Built, Learned, Model
from semimetric.own.sight import Sight
from semimetric.training import Run, model_tensors
from semimetric.training.optimizer import under

LEARNED = ("model.json", "model.safetensors", "preprocess.safetensors", "examples.safetensors", "examples.json")
"""Files without which a model cannot be had back."""


@dataclass(frozen=True)
class Examples:
    """Names of the examples, the folder or table they came from, the classes by number, and a table's columns."""

    names: tuple[str, ...]
    source: str
    classes: tuple[Any, ...]
    columns: tuple[str, ...] = ()


def versions() -> dict[str, str]:
    """What a run depends on."""
    return {
        "semimetric": semimetric.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }


def version_differences(written: Any) -> str:
    """A sentence on how the versions of a run differ from those here; none where they do not."""
    written = written if isinstance(written, dict) else {}
    here = versions()
    differing = [
        f"{name} {written.get(name, 'unknown')} (here {here[name]})" for name in here if written.get(name) != here[name]
    ]
    return f"the run was written with {'; '.join(differing)}." if differing else ""


def write_learned(run: Run, learned: Learned, examples: Examples) -> None:
    """Write all that it takes to have the model back."""
    model = learned.model
    run.write("model.json", dataclasses.asdict(learned.built))
    run.write_tensors("preprocess.safetensors", dict(model.preprocess.state_dict()))
    if not run.has("model.safetensors"):
        encoder = model.encoder or nn.Identity()
        run.write_tensors("model.safetensors", model_tensors(encoder, model.metric), {"epoch": 0})
    if model.sight is not None and model.sight.network is not None:
        run.write_tensors("backbone.safetensors", dict(model.sight.network.state_dict()))
    tensors = {
        "embeddings": learned.embeddings,
        "labels": learned.labels,
        "classes": learned.posteriors.classes,
        "shares": learned.posteriors.shares,
        "confidence": learned.posteriors.confidence,
    }
    run.write_tensors("examples.safetensors", tensors)
    classes = [value.item() if isinstance(value, np.generic) else value for value in examples.classes]
    listed = dataclasses.asdict(examples) | {"classes": classes}
    run.write("examples.json", listed)


def read_learned(run: Run, device: torch.device, encoder: nn.Module | None = None) -> tuple[Learned, Examples]:
    """The model and examples of a run; ``encoder`` is the user's own module, for a run that was trained with one."""
    lost = [name for name in LEARNED if not run.has(name)]
    if lost:
        raise RunError(
            f"{run.path} holds no {', '.join(lost)}: training has not ended, or files were lost. Continue it with "
            "'semimetric fit ... --resume'."
        )
    tensors, _ = run.read_tensors("model.safetensors")
    scaling, _ = run.read_tensors("preprocess.safetensors")
    try:
        built = _built(run)
        model = Model(
            restore_preprocess(built.preprocess, scaling).to(device),
            _encoder(run, built, tensors, encoder, device),
            Metric(tensors["metric.factor"]).to(device),
            _sight(run, built),
        )
        return _examples(run, model, built)
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{run.path} does not fit this version of semimetric ({semimetric.__version__}): {error!r}."
        ) from error


def _built(run: Run) -> Built:
    fields = run.read("model.json") or {}
    return Built(**fields | {name: tuple(fields[name]) for name in ("shape", "inputs")})


def _encoder(
    run: Run, built: Built, tensors: dict[str, Tensor], own: nn.Module | None, device: torch.device
) -> nn.Module | None:
    if built.encoder == "none":
        return None
    if built.module and own is None:
        raise InputError(
            f"{run.path} was trained with a module of your own ({built.module}), which a run does not hold: build it "
            "again and pass it as encoder."
        )
    weights = under("encoder.", tensors)
    try:
        if own is None:
            network = rebuild_encoder(built.encoder, built.inputs, weights, init="he")
        else:
            network = copy.deepcopy(own)
            network.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"the model in {run.path} does not fit its encoder: {' '.join(str(error).split())}") from error
    return network.to(device).eval()


def _sight(run: Run, built: Built) -> Sight | None:
    if not built.side:
        return None
    if not built.backbone:
        return Sight(built.side)
    tensors, _ = run.read_tensors("backbone.safetensors")
    network = rebuild_encoder(built.backbone, (3, built.side, built.side), tensors)
    return Sight(built.side, network=network.eval())


def _examples(run: Run, model: Model, built: Built) -> tuple[Learned, Examples]:
    tensors, _ = run.read_tensors("examples.safetensors")
    listed = run.read("examples.json") or {}
    posteriors = Posteriors(tensors["classes"], tensors["shares"], tensors["confidence"])
    facts = run.read("result.json") or {}
    learned = Learned(model, built, tensors["embeddings"], tensors["labels"], posteriors, facts)
    columns = tuple(listed["columns"])
    return learned, Examples(tuple(listed["names"]), listed["source"], tuple(listed["classes"]), columns)
