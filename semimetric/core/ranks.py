"""Several processes that fit one model: the ranks of ``torch.distributed``.

All ranks run the same program on the same data with the same random numbers. Work on rows is split: each rank does its
part, and all get the whole. What could differ by rounding and decides what happens next is taken from the first rank.
A process alone is one rank, for which every function here returns what it was given.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import memory_of, tensor_pieces
from semimetric.core.world import World, wanted

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for one that is alive and does not answer. One that has ended is noticed at once."""

T = TypeVar("T")


_state = {"world": World()}


class RankLost(RunError):
    """Another rank has ended, or does not answer."""


class FirstFailed(RunError):
    """The first rank has ended with an error, which it tells itself."""


def world() -> World:
    """The ranks that work together now."""
    return _state["world"]


def is_first() -> bool:
    """Whether this rank is the one that writes and speaks."""
    return world().rank == 0


@contextmanager
def joined(on_gpu: bool) -> Iterator[World]:
    """Work together with the other ranks that the environment names; alone if it names none."""
    if wanted().size == 1:
        yield world()
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise InputError(
            f"WORLD_SIZE says that this is one of {wanted().size} processes, and {' and '.join(missing)} do not say "
            "where they meet. Start them with --devices or torchrun, or unset WORLD_SIZE to work alone."
        )
    transport = "gloo"
    if on_gpu:
        here, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        torch.cuda.set_device(here % gpus)
        shared = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > gpus  # which NCCL refuses
        transport = "gloo" if shared else "cpu:gloo,cuda:nccl"
    with _collective():
        dist.init_process_group(transport, timeout=PATIENCE)
    _state["world"] = World(dist.get_world_size(), dist.get_rank())
    try:
        yield world()
    except RankLost:
        _state["world"] = World()
        raise  # the group stays as it is: its threads may wait for the lost rank, and abort the process if it is closed
    except BaseException:
        _close()
        raise
    _close()


def _close() -> None:
    _state["world"] = World()
    dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """Within it this rank works as if it were the only one: what it calls waits for nobody."""
    before, _state["world"] = world(), World()
    try:
        yield
    finally:
        _state["world"] = before


@contextmanager
def _collective() -> Iterator[None]:
    """An error of the transport is a sentence."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^\[[^]]*\] ", "", " ".join(str(error).split())).split(". ")[0][:200]
        raise RankLost(
            f"another process of this fit has ended or does not answer ({reason}). What was saved before is untouched; "
            "continue with the same command and --resume."
        ) from error


def part_of(count: int) -> slice:
    """The rows of this rank among ``count``: as many for each, give or take one."""
    here = world()
    return slice(count * here.rank // here.size, count * (here.rank + 1) // here.size)


def in_parts(function: Callable[[slice], Tensor], count: int) -> Tensor:
    """``function`` of ``count`` rows, which returns one row for each; every rank applies it to its part."""
    if world().size == 1 or count < world().size:
        return function(slice(0, count))
    with torch.no_grad():
        return gathered(function(part_of(count)), count)


def gathered(part: Tensor, count: int) -> Tensor:
    """All ``count`` rows of which each rank has its ``part_of``.

    Gradients flow back to the own part. All ranks compute the same loss of all rows, so nothing is summed here.
    """
    if world().size == 1:
        return part
    whole: Tensor = _Gather.apply(part, count)  # type: ignore[no-untyped-call]
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, count: int) -> Tensor:
        ctx.own = part_of(count)
        size = world().size
        longest = -(-count // size)
        padded = part.new_zeros(longest, *part.shape[1:])
        padded[: len(part)] = part
        pieces = [torch.empty_like(padded) for _ in range(size)]
        with _collective():
            dist.all_gather([_as_bytes(piece) for piece in pieces], _as_bytes(padded))
        bounds = [count * rank // size for rank in range(size + 1)]
        return torch.cat([piece[: bounds[at + 1] - bounds[at]] for at, piece in enumerate(pieces)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.own], None


def summed(values: Tensor) -> Tensor:
    """The sum of what all ranks have; gradients are summed as well, as each rank uses the sum for its own rows."""
    if world().size == 1:
        return values
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return _add_up(values.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _add_up(gradients[0].clone())


def _add_up(values: Tensor) -> Tensor:
    with _collective():
        dist.all_reduce(values)
    return values


def join_gradients(of_parts: Iterable[nn.Parameter], of_whole: Iterable[nn.Parameter]) -> None:
    """Gradients of the loss of all rows, after each rank's backward pass.

    Parameters
    ----------
    of_parts : have seen the rows of this rank alone: their gradients are summed
    of_whole : have seen all rows on every rank: their gradients are averaged, so that they are equal to the last bit
    """
    size = world().size
    if size == 1:
        return
    gradients = [parameter.grad for parameter in of_parts if parameter.grad is not None]
    averaged = [parameter.grad for parameter in of_whole if parameter.grad is not None]
    pieces = [gradient.reshape(-1) for gradient in gradients] + [gradient.reshape(-1) / size for gradient in averaged]
    if not pieces:
        return
    total = _add_up(torch.cat(pieces))
    found = total.split([len(piece) for piece in pieces])
    for gradient, values in zip(gradients + averaged, found, strict=True):
        gradient.copy_(values.view_as(gradient))


def on_first(make: Callable[[], T]) -> T | None:
    """What ``make`` returns on the first rank, which runs it alone; the others wait, and get None."""
    if world().size == 1:
        return make()
    made: T | None = None
    failed: BaseException | None = None
    if is_first():
        try:
            with alone():
                made = make()
        except Exception as error:
            failed = error
    went_wrong = torch.tensor([failed is not None], dtype=torch.int64)
    _send(went_wrong)
    if failed is not None:
        raise failed
    if bool(went_wrong):
        raise FirstFailed("the first process of this fit has ended with an error; its message says why.")
    return made


def of_first(value: T) -> T:
    """The first rank's ``value``, which JSON can hold; tuples become lists."""
    if world().size == 1:
        return value
    content = _bytes_of_first(json.dumps(value).encode() if is_first() else b"")
    own: T = json.loads(content)
    return own


def of_all(value: T) -> list[T]:
    """What each rank has, which JSON can hold."""
    if world().size == 1:
        return [value]
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    return [json.loads(piece.numpy().tobytes()) for piece in _pieces_of_all(content)]


def rows_of_all(rows: Tensor) -> Tensor:
    """The rows of all ranks, of which each may have another number, on the CPU; a rank without any may lack a width."""
    if world().size == 1:
        return rows
    width = max((shape[1:] for shape in of_all(list(rows.shape))), key=len)
    content = _as_bytes(rows.cpu()) if len(rows) else torch.empty(0, dtype=torch.uint8)
    found = torch.cat(_pieces_of_all(content))
    return found.view(rows.dtype).reshape(-1, *width)


def _pieces_of_all(content: Tensor) -> list[Tensor]:
    """The bytes (n,) of each rank."""
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world().size)]
    with _collective():
        dist.all_gather(lengths, torch.tensor([len(content)]))
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(content)] = content
    pieces = [torch.empty_like(padded) for _ in lengths]
    if longest:
        with _collective():
            dist.all_gather(pieces, padded)
    return [piece[: int(length)] for piece, length in zip(pieces, lengths, strict=True)]


def tensors_of_first(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first rank's named tensors, on the CPU of the others."""
    if world().size == 1:
        return tensors
    from safetensors.torch import load

    content = _bytes_of_first(b"".join(tensor_pieces(tensors)) if is_first() else b"")
    return tensors if is_first() else load(content)


def agreed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, if they are the same to the last bit on all ranks; else those of the first rank."""
    if world().size == 1:
        return tensors
    digest = 0
    for name, tensor in tensors.items():
        digest = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), digest)
        digest = zlib.crc32(memory_of(tensor), digest)
    digests = [torch.zeros(1, dtype=torch.int64) for _ in range(world().size)]
    with _collective():
        dist.all_gather(digests, torch.tensor([digest]))
    if len({int(other) for other in digests}) == 1:
        return tensors
    found = tensors_of_first(tensors)
    return {name: found[name].to(tensor.device) for name, tensor in tensors.items()}


@contextmanager
def part_draws(device: torch.device) -> Iterator[None]:
    """Random layers draw other numbers on each rank; afterwards the generators of all ranks agree again."""
    if world().size == 1:
        yield
        return
    on_gpu = device.type == "cuda"
    generator = torch.cuda.default_generators[torch.cuda.current_device()] if on_gpu else torch.default_generator
    before = generator.get_state()
    generator.manual_seed(zlib.crc32(memory_of(before)) * world().size + world().rank)
    began = generator.get_state()
    try:
        yield
    finally:
        drawn = not torch.equal(generator.get_state(), began)
        generator.set_state(before)
        if drawn:  # the next step must not draw the same
            torch.rand((), generator=generator, device=device)


def _bytes_of_first(content: bytes) -> bytes:
    length = torch.tensor([len(content)])
    _send(length)
    sent = torch.zeros(int(length), dtype=torch.uint8)
    if is_first():
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    _send(sent)
    return content if is_first() else sent.numpy().tobytes()


def _send(values: Tensor) -> None:
    """Overwrite the values of the other ranks with those of the first."""
    with _collective():
        dist.broadcast(values, src=0)


def _as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a tensor, which any transport can carry."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
