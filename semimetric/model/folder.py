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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import sklearn
import torch
from torch import Tensor, nn

import semimetric
from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError, RunError
from semimetric.core.files import sha256_of
from semimetric.data import restore_preprocess
from semimetric.data.photographs.images import check_photo_options
from semimetric.data.samples import Kind
from semimetric.encoders import rebuild_encoder
from semimetric.encoders.photographs import Sight
from semimetric.graph import Posteriors
from semimetric.metric import Metric
from semimetric.model.fitted import Built, Learned, Model
from semimetric.training import Run, model_tensors
from semimetric.training.optimizer import under

LEARNED = ("model.json", "model.safetensors", "preprocess.safetensors", "examples.safetensors", "examples.json")
"""Files without which a model cannot be had back."""


@dataclass(frozen=True)
class Examples:
    """Names of the examples, the folder or table they came from, and the classes by number.

    Of a table also its columns of features, and those of labels and of names where the user had to name them.
    """

    names: tuple[str, ...]
    source: str
    classes: tuple[Any, ...]
    columns: tuple[str, ...] = ()
    label_column: str = ""
    id_column: str = ""


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
    run.write_tensors("examples.safetensors", tensors, {"model": sha256_of(run.path / "model.safetensors")})
    classes = [value.item() if isinstance(value, np.generic) else value for value in examples.classes]
    listed = dataclasses.asdict(examples) | {"classes": classes}
    run.write("examples.json", listed)


def read_learned(run: Run, device: torch.device, encoder: nn.Module | None = None) -> tuple[Learned, Examples]:
    """The model and examples of a run; ``encoder`` is the user's own module, for a run that was trained with one."""
    lost = [name for name in LEARNED if not run.has(name)]
    if lost:
        raise RunError(
            f"{run.path} holds no {', '.join(lost)}: training has not ended, or files were lost. Continue it with the "
            "same 'semimetric fit' and --resume."
        )
    built = _built(run)
    _check_module(run, built, encoder)
    tensors, _ = run.read_tensors("model.safetensors")
    scaling, _ = run.read_tensors("preprocess.safetensors")
    try:
        model = Model(
            restore_preprocess(built.preprocess, scaling).to(device),
            _encoder(run, built, tensors, encoder, device),
            Metric(tensors["metric.factor"]).to(device),
            _sight(run, built),
        )
        with _fitting(run, "model.safetensors"):
            model.embed(torch.zeros(1, *built.inputs))
        return _examples(run, model, built)
    except (InputError, KeyError, TypeError, AttributeError) as error:
        raise _misfit(run, error) from error


def _misfit(run: Run, error: Exception) -> RunError:
    told = error if isinstance(error, InputError) else repr(error)
    return RunError(
        f"{run.path} is damaged, or of another version of semimetric than this ({semimetric.__version__}): {told}"
    )


def _built(run: Run) -> Built:
    texts = dict.fromkeys(("kind", "preprocess", "encoder", "module", "backbone", "fit"), str)
    fields = _fields(run, "model.json", shape=list, inputs=list, side=int, **texts)
    try:
        built = Built(**fields | {name: tuple(fields[name]) for name in ("shape", "inputs")})
        check_choice(built.kind, get_args(Kind), "kind")
        if built.kind == "photographs":
            check_photo_options(built.side, built.fit, workers=None)
    except (InputError, KeyError, TypeError) as error:
        raise _misfit(run, error) from error
    return built


def _fields(run: Run, name: str, **kinds: type[Any]) -> dict[str, Any]:
    """A JSON object of a run, the fields of which are of these kinds where they are there."""
    found = run.read(name)
    if not isinstance(found, dict):
        raise RunError(f"{run.path / name} is damaged: it holds no fields. Start again with another --out.")
    odd = next((field for field in found if not isinstance(found[field], kinds.get(field, object))), None)
    if odd is not None:
        raise RunError(f"{run.path / name} is damaged: {odd} is {found[odd]!r}. Start again with another --out.")
    return found


def _check_module(run: Run, built: Built, own: nn.Module | None) -> None:
    if built.module and own is None:
        raise InputError(
            f"{run.path} was trained with a module of your own ({built.module}), which a run does not hold: build it "
            "again and pass it as semimetric.load(..., encoder=module)."
        )
    if own is not None and not built.module:
        raise InputError(f"{run.path} was trained with the encoder {built.encoder!r}, which it holds. Pass no other.")


def _encoder(
    run: Run, built: Built, tensors: dict[str, Tensor], own: nn.Module | None, device: torch.device
) -> nn.Module | None:
    if built.encoder == "none":
        return None
    weights = under("encoder.", tensors)
    with _fitting(run, "model.safetensors"):
        if own is None:
            network = rebuild_encoder(built.encoder, built.inputs, weights, init="he")
        else:
            network = copy.deepcopy(own)
            network.load_state_dict(weights)
    return network.to(device).eval()


def _sight(run: Run, built: Built) -> Sight | None:
    if not built.side:
        return None
    if not built.backbone:
        return Sight(built.side, built.fit)
    tensors, _ = run.read_tensors("backbone.safetensors")
    with _fitting(run, "backbone.safetensors"):
        network = rebuild_encoder(built.backbone, (3, built.side, built.side), tensors)
    return Sight(built.side, built.fit, network.eval())


@contextmanager
def _fitting(run: Run, name: str) -> Iterator[None]:
    """Say of weights that torch cannot put into a network which they are."""
    try:
        yield
    except RuntimeError as error:
        mismatch = " ".join(str(error).split())
        raise RunError(f"{run.path / name} does not fit its network: {mismatch}") from error


def _examples(run: Run, model: Model, built: Built) -> tuple[Learned, Examples]:
    tensors, state = run.read_tensors("examples.safetensors")
    if state is not None and state["model"] != sha256_of(run.path / "model.safetensors"):
        raise RunError(
            f"the examples in {run.path} are not embedded by the model that is there now: training went on after it "
            "had been interrupted, and has not ended. Continue it with the same 'semimetric fit' and --resume."
        )
    texts = dict.fromkeys(("source", "label_column", "id_column"), str)
    listed = _fields(run, "examples.json", names=list, classes=list, columns=list, **texts)
    lists = {name: tuple(listed.pop(name)) for name in ("names", "classes", "columns")}
    examples = Examples(**listed | lists)
    posteriors = Posteriors(tensors["classes"], tensors["shares"], tensors["confidence"])
    facts = _fields(run, "result.json") if run.has("result.json") else {}
    learned = Learned(model, built, tensors["embeddings"], tensors["labels"], posteriors, facts)
    _check_examples(run, learned, examples)
    return learned, examples


def _check_examples(run: Run, learned: Learned, examples: Examples) -> None:
    """Refuse files that are not of the same examples and classes."""
    count, classes = len(examples.names), len(examples.classes)
    found = learned.posteriors
    shapes = {
        "embeddings": (learned.embeddings, (count, learned.model.metric.factor.shape[1])),
        "labels": (learned.labels, (count,)),
        "classes": (found.classes, (classes,)),
        "shares": (found.shares, (count, classes)),
        "confidence": (found.confidence, (count,)),
    }
    for name, (tensor, shape) in shapes.items():
        if tuple(tensor.shape) != shape:
            raise RunError(
                f"{run.path} is damaged: {name} in examples.safetensors have the shape {tuple(tensor.shape)}, and "
                f"examples.json and the model want {shape}. Start again with another --out."
            )
