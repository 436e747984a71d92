"""Files of weights: tensors by name, read without unpickling any code."""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.core.files import check_input

UNREADABLE = (
    *(
        OSError,
        EOFError,
        ValueError,
        RuntimeError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        MemoryError,
        struct.error,
    ),
    *(ImportError, SyntaxError, TokenError, pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, SafetensorError),
)
"""What libraries raise for files that are damaged or of another kind."""
"""What reading a damaged file may raise."""


def check_weights_file(path: Path) -> None:
    """Refuse a file of weights that is not there, or of a kind that is not read."""
    if path.suffix not in _READERS:
        raise InputError(f"weights must be a file that ends in {', '.join(_READERS)}, got {path}.")
    check_input(path, "a file with the weights of a network")


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Tensors by name from a .npz or .safetensors file, or a ``state_dict`` in .pth or .pt; no code is unpickled."""
    path = Path(path)
    check_weights_file(path)
    try:
        tensors: dict[str, Tensor] = _READERS[path.suffix](path)
    except UNREADABLE as error:
        raise InputError(
            f"the weights in {path} cannot be read: {error}. "
            "The file is damaged, or holds more than tensors; save a state_dict, or fetch it again."
        ) from error
    check_tensors(tensors, path)
    return tensors


def _read_npz(path: Path) -> dict[str, Tensor]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no archive of arrays")
    with np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


_read_torch = partial(torch.load, map_location="cpu", weights_only=True)
_READERS: dict[str, Callable[[Path], Any]] = {".npz": _read_npz, ".safetensors": load_file}
_READERS |= {".pth": _read_torch, ".pt": _read_torch}


def check_tensors(tensors: object, path: Path) -> None:
    """Refuse anything but finite tensors by name; ``path`` is for the messages."""
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise InputError(
            f"the weights in {path} must be tensors by name, that is a state_dict, got {type(tensors).__name__} "
            "with other things in it. Save model.state_dict() alone."
        )
    broken = [name for name, value in tensors.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise InputError(
            f"the weights in {path} have NaN or infinite values, first in {broken[0]!r}. Use an undamaged file."
        )


def load_tensors(
    network: nn.Module, tensors: Mapping[str, Tensor], source: Path | str, ignored: tuple[str, ...] = ()
) -> None:
    """Copy ``tensors`` into ``network``: all of its own, and no others but those that begin with one of ``ignored``."""
    try:
        missing, beyond = network.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        mismatch = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"the weights in {source} do not fit the network: {mismatch}. Use weights of the same network."
        ) from error
    if missing:
        raise InputError(
            f"the weights in {source} lack {len(missing)} of the network's tensors, first {missing[0]!r}. "
            "Use weights of the same network."
        )
    unknown = [name for name in beyond if not name.startswith(ignored)]
    if unknown:
        raise InputError(
            f"the weights in {source} have {len(unknown)} tensors that the network has not, first {unknown[0]!r}. "
            "They are of another network, perhaps a deeper one of its family; use weights of the same network."
        )
