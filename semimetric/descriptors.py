"""Images as a pretrained network sees them: a vector for each, computed once and kept."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.data import Dataset, Examples, PhotoReader, PreprocessName, build_preprocess
from semimetric.encoders import build_encoder, encode
from semimetric.errors import InputError
from semimetric.files import read_tensors, write_tensors

PREPROCESS: PreprocessName = "imagenet"
"""What pretrained networks expect of their images."""


def described(
    dataset: Dataset,
    backbone: str,
    weights: Path | None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    keep: Path | None = None,
) -> Dataset:
    """The dataset with unit descriptors (N, d) of a frozen network in place of its images.

    Parameters
    ----------
    backbone, weights : name of an encoder of photographs, and the file of its weights
        Without a file the network is random, drawn from ``seed``.
    keep : Path, optional
        Where descriptors are kept: they are read from there if they are of the same dataset, network and weights,
        refused if they are of others, and written there if there are none.
    """
    origin = _origin(dataset, backbone, weights, seed)
    if keep is not None and keep.exists():
        return _with_inputs(dataset, _kept(keep, origin))
    _check_folder(keep)
    network = build_encoder(backbone, tuple(dataset.train.inputs.shape[1:]), seed, weights=weights)
    seeing = seeing_bytes(network).to(device)
    found = {name: encode(seeing, part.inputs).cpu() for name, part in _parts(dataset).items()}
    if keep is not None:
        write_tensors(keep, found, origin)
    return _with_inputs(dataset, found)


def describe_photos(reader: PhotoReader, network: nn.Module, batch_size: int = 128) -> tuple[Tensor, Tensor]:
    """Unit descriptors (n, d) of photographs as they are read, and their rows (n,).

    Nothing but what the reader may hold is in memory at a time; what cannot be decoded is in ``reader.skipped``.

    Parameters
    ----------
    network : nn.Module
        An encoder of photographs that are normalised by the statistics of ImageNet; it computes where it is.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    seeing = seeing_bytes(network).to(device)
    pieces = [(rows, encode(seeing, images).cpu()) for rows, images in reader.stream(batch_size)]
    if not pieces:
        raise InputError(f"paths must name a photograph that can be decoded, and none of {len(reader)} can.")
    rows, descriptors = zip(*pieces, strict=True)
    return torch.cat(rows), torch.cat(descriptors)


def seeing_bytes(network: nn.Module) -> nn.Sequential:
    """The network for images of bytes (N, 3, H, W)."""
    scaling = build_preprocess(PREPROCESS, torch.zeros(1, 3, 1, 1, dtype=torch.uint8))
    return nn.Sequential(scaling, network).train(network.training)


def _parts(dataset: Dataset) -> dict[str, Examples]:
    return {"train": dataset.train, "test": dataset.test}


def _with_inputs(dataset: Dataset, inputs: dict[str, Tensor]) -> Dataset:
    train, test = (Examples(inputs[name], part.labels) for name, part in _parts(dataset).items())
    return dataclasses.replace(dataset, train=train, test=test)


def _origin(dataset: Dataset, backbone: str, weights: Path | None, seed: int) -> dict[str, Any]:
    """What descriptors are of; those of the same origin are the same."""
    return {
        "images": {name: _digest_of_examples(part) for name, part in _parts(dataset).items()},
        "backbone": backbone,
        "weights": _digest(weights) if weights is not None else f"random from seed {seed}",
    }


def _digest_of_examples(examples: Examples) -> str:
    """Of all pixels and labels, in their order."""
    digest = hashlib.sha256(str(tuple(examples.inputs.shape)).encode())
    for tensor in (examples.inputs, examples.labels):
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _digest(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"weights {str(path)!r} is no file. Name the file that holds the network's weights.")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept(path: Path, origin: dict[str, Any]) -> dict[str, Tensor]:
    tensors, found = read_tensors(path)
    if found != origin:
        found = found if isinstance(found, dict) else {}
        differing = [name for name in origin if found.get(name) != origin[name]]
        raise InputError(
            f"descriptors {str(path)!r} are of another {', '.join(differing)}; name another file, or remove this one."
        )
    return tensors


def _check_folder(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise InputError(f"descriptors {str(path)!r} cannot be kept: there is no folder {str(path.parent)!r}. Make it.")
