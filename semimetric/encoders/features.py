"""From examples to unit-norm features."""

from __future__ import annotations

from functools import cache
from math import prod

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.data.stored import Inputs

NORM_FLOOR = 1e-12  # a shorter row has no direction, as that of a network whose last units are all dead
CHUNK = 1024  # the most examples that are encoded at a time, ...
CHUNK_NUMBERS = 1 << 24  # ... and the most numbers in them; on a CPU fewer, as smaller maps stay in its cache
CHUNK_NUMBERS_ON_CPU = 1 << 20


def unit_features(outputs: Tensor) -> Tensor:
    """Rows of encoder outputs scaled to unit length; one without a direction becomes zero, with a zero gradient."""
    squares = outputs.square().sum(1, keepdim=True)
    blank = squares <= NORM_FLOOR**2  # not where an output is no number, which must show
    lengths = torch.where(blank, 1.0, squares).sqrt()
    return torch.where(blank, 0.0, outputs / lengths)


def blended(frozen: Tensor, learned: Tensor, share: float) -> Tensor:
    """Embeddings (N, d + l) of unit length, of frozen features (N, d) and learned ones (N, l).

    A squared distance is ``share`` times that of the unit frozen features and 1 - ``share`` times that of the learned.
    """
    return torch.cat([share**0.5 * unit_features(frozen), (1 - share) ** 0.5 * unit_features(learned)], 1)


@cache
def has_bfloat16() -> bool:
    """Whether the processor computes in bfloat16 itself; others imitate it, more slowly than float32."""
    try:
        return bool(torch.cpu._is_avx512_bf16_supported())
    except (AttributeError, RuntimeError):  # another version of torch, or another kind of processor
        return False


def training_mode(encoder: nn.Module, freeze_norm: bool = False) -> None:
    """Put an encoder into training mode; with ``freeze_norm`` all but its batch normalisation.

    That keeps its statistics then, and normalises by them. Its gains and biases are trained all the same. Batches of
    views, and of neighbours, are unlike the photographs that a pretrained network has its statistics from.
    """
    encoder.train()
    for module in encoder.modules() if freeze_norm else ():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def arranged(encoder: nn.Module, precision: str) -> nn.Module:
    """The encoder, on a CPU in half precision with the channels of its weights last, as is fastest there."""
    on_cpu = all(parameter.is_cpu for parameter in encoder.parameters())
    if on_cpu and (precision == "bfloat16" or (precision == "auto" and has_bfloat16())):
        for parameter in encoder.parameters():
            if parameter.ndim == 4:  # Module.to would raise for those of a convolution in three dimensions
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return encoder


def as_loaded(encoder: nn.Module) -> nn.Module:
    """The encoder with its weights in the order in which a run is loaded, so that both give the same numbers."""
    return encoder.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload,no-any-return]


def features_of(encoder: nn.Module, inputs: Tensor, precision: str = "float32") -> Tensor:
    """Unit features (n, d) of one batch; in ``bfloat16`` the encoder alone computes in half precision.

    ``auto`` is bfloat16 for images on a processor that has it, and float32 otherwise.
    """
    half = precision == "auto" and inputs.ndim == 4 and inputs.is_cpu and has_bfloat16()
    if precision != "bfloat16" and not half:
        return unit_features(encoder(inputs))
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)  # faster in half precision
    with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):  # a CUDA graph cannot hold the cache
        outputs = encoder(inputs)
    return unit_features(outputs.float())


@torch.no_grad()
def encode(encoder: nn.Module, inputs: Inputs, chunk: int | None = None, precision: str = "float32") -> Tensor:
    """Unit features (N, d) of all inputs in evaluation mode, by chunks; the encoder's mode is restored."""
    device = next((p.device for p in encoder.parameters()), inputs.device)
    largest = CHUNK_NUMBERS_ON_CPU if device.type == "cpu" else CHUNK_NUMBERS
    chunk = chunk or max(1, min(CHUNK, largest // prod(inputs.shape[1:])))
    was_training = encoder.training
    encoder.eval()
    found = torch.empty(0, device=device)
    start = 0
    for piece in inputs.split(chunk):
        part = features_of(encoder, piece.to(device), precision)
        if not start:  # one array for all: small ones between large ones that are freed keep the heap from shrinking
            found = part.new_empty(len(inputs), part.shape[1])
        found[start : start + len(part)] = part
        start += len(part)
    encoder.train(was_training)
    return found


def output_width(encoder: nn.Module, examples: Inputs) -> int:
    """Width d of an encoder's (N, d) output for ``examples`` (n, ...); other outputs are refused."""
    example = examples[:2]
    was_training = encoder.training
    encoder.eval()
    with torch.no_grad():
        try:
            output = encoder(example)
        except (RuntimeError, AssertionError, ValueError) as error:
            raise InputError(
                f"the encoder cannot take inputs of shape {tuple(example.shape[1:])}: {error}. "
                "Choose an encoder that fits the data."
            ) from error
    encoder.train(was_training)
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(example):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"the encoder must return one row per example, (N, d); for 2 examples it returned {got}.")
    return int(output.shape[1])
