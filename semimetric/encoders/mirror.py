"""Features of an image averaged with those of its mirror image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from semimetric.core.errors import InputError


class Mirrored(nn.Module):
    """In evaluation mode the mean of a network's rows for images (N, C, H, W) and for their mirror images.

    In training mode the network itself: views are mirrored at random there. Its ``state_dict`` is the network's.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_state_dict_post_hook(_without_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image."""
        rows: Tensor = self.network(images)
        return rows if self.training else (rows + self.network(images.flip(-1))) / 2


def _without_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    inner = f"{prefix}network."
    for name in [name for name in state if name.startswith(inner)]:
        state[prefix + name.removeprefix(inner)] = state.pop(name)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}network.{name.removeprefix(prefix)}"] = state.pop(name)


def mirrored(network: nn.Module, mirror: bool, shape: tuple[int, ...]) -> nn.Module:
    """The network, with ``mirror`` as a ``Mirrored`` one; inputs of a shape that is not that of images are refused."""
    if mirror and len(shape) != 3:
        raise InputError(f"mirror is for images, got inputs of shape {shape}. Leave it out.")
    return Mirrored(network) if mirror else network
