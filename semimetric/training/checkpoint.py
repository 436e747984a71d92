"""The trained model as named tensors, and checkpoints from which a run resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from semimetric.core import ranks
from semimetric.core.errors import RunError
from semimetric.metric import Metric
from semimetric.training.optimizer import optimizer_tensors, restore_optimizer, under
from semimetric.training.result import Best
from semimetric.training.run import Run
from semimetric.training.watch import Watch

if TYPE_CHECKING:
    from semimetric.training.trainer import Trainer


def model_tensors(encoder: nn.Module, metric: Metric) -> dict[str, Tensor]:
    """Encoder and metric as named tensors on the CPU."""
    tensors = {f"encoder.{name}": tensor.detach().cpu().clone() for name, tensor in encoder.state_dict().items()}
    return tensors | {"metric.factor": metric.factor.detach().cpu().clone()}


def load_model(encoder: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load the encoder's part of ``model_tensors`` into ``encoder``."""
    encoder.load_state_dict(under("encoder.", tensors))


def trained_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """Encoder, metric and method of a trainer as named tensors on the CPU."""
    return model_tensors(trainer.encoder, trainer.metric) | {
        f"method.{name}": tensor.detach().cpu().clone() for name, tensor in trainer.method.state_dict().items()
    }


def load_trained(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    """Load ``trained_tensors`` into a trainer."""
    load_model(trainer.encoder, tensors)
    trainer.method.load_state_dict(under("method.", tensors))
    trainer.metric = Metric(tensors["metric.factor"]).to(trainer.device)


def start_from(trainer: Trainer, tensors: dict[str, Tensor], known: Tensor) -> None:
    """Begin with the ``trained_tensors`` of another run; ``known`` are its numbers of the classes here, -1 for none."""
    load_model(trainer.encoder, tensors)
    trainer.metric = Metric(tensors["metric.factor"]).to(trainer.device)
    trainer.method.start_from(under("method.", tensors), known)


def write_checkpoint(trainer: Trainer, run: Run) -> None:
    """Write everything that ``restore_checkpoint`` needs, except for the best model."""
    tensors = trained_tensors(trainer) | trainer.schedule.state()
    tensors |= {"generator": trainer.generator.get_state(), "torch_rng": _draws(trainer).get_state()}
    if trainer.device.type == "cuda":
        tensors["cuda_rng"] = torch.cuda.get_rng_state(trainer.device)
    tensors |= optimizer_tensors(trainer.optimizer)
    tensors |= trainer.average.state() if trainer.average else {}
    tensors |= {} if trainer.mined_from is None else {"mined_from": trainer.mined_from}
    state = {name: getattr(trainer, name) for name in ("epoch", "seconds", "guards", "trust")}
    run.write_tensors("checkpoint.safetensors", tensors, state | {"watch": trainer.watch.state()})


def restore_checkpoint(trainer: Trainer, run: Run | None) -> None:
    """Continue from the checkpoint and the best model of a run, which the first rank has; others are refused."""
    tensors, state = _read(run, "checkpoint.safetensors")
    best_tensors, best = _read(run, "model.safetensors")
    try:
        _restore(trainer, tensors, state)
        trainer.best = Best(int(best["epoch"]), tuple(float(part) for part in best["score"]), best_tensors)
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        name = "the checkpoint" if run is None else run.path / "checkpoint.safetensors"
        raise RunError(
            f"{name} is damaged, or of another training: {type(error).__name__}: {reason}. Start again with another "
            "--out."
        ) from error
    if run is not None:
        run.forget_after(trainer.epoch)


def _read(run: Run | None, name: str) -> tuple[dict[str, Tensor], Any]:
    """Tensors and state of a file that the first rank reads."""
    tensors, state = ranks.on_first(lambda: _of(run).read_tensors(name)) or ({}, None)
    return ranks.tensors_of_first(tensors), ranks.of_first(state)


def _draws(trainer: Trainer) -> torch.Generator:
    """The generator on the host that training draws from."""
    return torch.default_generator if trainer.method.draws is None else trainer.method.draws


def _of(run: Run | None) -> Run:
    assert run is not None, "the first rank has the run"
    return run


def _restore(trainer: Trainer, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    load_trained(trainer, tensors)
    trainer.schedule.restore(tensors)
    trainer.generator.set_state(tensors["generator"])
    _draws(trainer).set_state(tensors["torch_rng"])
    if trainer.device.type == "cuda" and "cuda_rng" in tensors:
        torch.cuda.set_rng_state(tensors["cuda_rng"], trainer.device)
    restore_optimizer(trainer.optimizer, tensors)
    if trainer.average:
        trainer.average.restore(tensors)
    if "mined_from" in tensors:
        trainer.mined_from = tensors["mined_from"].to(trainer.device)
    trainer.watch = Watch.restore(state["watch"])
    trainer.epoch, trainer.seconds = int(state["epoch"]), float(state["seconds"])
    trainer.guards, trainer.trust = [str(name) for name in state["guards"]], state["trust"]
    if trainer.trust is not None and not isinstance(trainer.trust, dict):
        raise TypeError("trust holds no estimate")
