"""Images as a pretrained network sees them: a vector for each, computed once and kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import read_tensors, sha256_of, write_tensors
from semimetric.data import Dataset, Examples, Fit, Photographs, PhotoReader, PreprocessName, build_preprocess
from semimetric.data.benchmarks.albums import Album
from semimetric.data.photographs.images import check_photo_options
from semimetric.encoders import build_encoder, encode
from semimetric.pipeline.protocol import digest_of_weights

PREPROCESS: PreprocessName = "imagenet"
"""What pretrained networks expect of their images."""

_BATCH = 64
"""So many photographs are described at a time, and as many decoded meanwhile."""


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
    images = {name: _digest_of_examples(part) for name, part in _parts(dataset).items()}
    origin = {"images": images} | _origin_of_network(backbone, weights, seed)
    if keep is not None and keep.exists():
        return _with_inputs(dataset, _kept(keep, origin)[0])
    _check_folder(keep)
    network = build_encoder(backbone, tuple(dataset.train.inputs.shape[1:]), seed, weights=weights)
    seeing = seeing_bytes(network).to(device)
    found = {name: encode(seeing, part.inputs).cpu() for name, part in _parts(dataset).items()}
    if keep is not None:
        write_tensors(keep, found, origin)
    return _with_inputs(dataset, found)


def described_photographs(
    photographs: Photographs,
    side: int,
    fit: Fit,
    backbone: str,
    weights: Path | None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    keep: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """As ``described``, of photographs that are decoded as they are described and never in memory all at once.

    What is kept is told to be of these photographs by their names, labels and files, so that not one is decoded for
    it; rows that could not be decoded are kept, too, with the reason, and are left out of the dataset again.

    Parameters
    ----------
    side, fit : as for ``decode_image``
    progress : callable, optional
        Told how many photographs are described, of how many.
    """
    check_photo_options(side, fit, workers=None)
    origin: dict[str, Any] = {"side": side, "fit": fit} | _origin_of_network(backbone, weights, seed)
    if keep is not None:
        origin["photographs"] = {
            name: _digest_of_files(photographs, part) for name, part in photographs.parts().items()
        }
        if keep.exists():
            return _assembled(photographs, *_kept(keep, origin))
    _check_folder(keep)
    network = build_encoder(backbone, (3, side, side), seed, weights=weights).to(device)
    found: dict[str, Tensor] = {}
    skipped: dict[str, dict[str, str]] = {}
    for name, part, count in photographs.counted(progress):
        reader = PhotoReader(part.paths, side, fit, cache_bytes=_BATCH * 3 * side**2)
        _, found[name] = describe_photos(reader, network, _BATCH, count)
        why = reader.skipped
        skipped[name] = {str(row): why[path] for row, path in enumerate(part.paths) if path in why}
    if keep is not None:
        write_tensors(keep, found, origin | {"skipped": skipped})
    return _assembled(photographs, found, skipped)


def describe_photos(
    reader: PhotoReader,
    network: nn.Module,
    batch_size: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Unit descriptors (n, d) of photographs as they are read, and their rows (n,).

    Nothing but what the reader may hold is in memory at a time; what cannot be decoded is in ``reader.skipped``.

    Parameters
    ----------
    network : nn.Module
        An encoder of photographs that are normalised by the statistics of ImageNet; it computes where it is.
    progress : callable, optional
        Called after each batch with how many photographs are behind it, of how many.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    seeing = seeing_bytes(network).to(device)
    described_rows, descriptors = [], []
    for rows, images in reader.stream(batch_size):
        described_rows.append(rows)
        descriptors.append(encode(seeing, images).cpu())
        if progress is not None:
            progress(int(rows[-1]) + 1, len(reader))
    if not descriptors:
        raise InputError(f"paths must name a photograph that can be decoded, and none of {len(reader)} can.")
    return torch.cat(described_rows), torch.cat(descriptors)


def seeing_bytes(network: nn.Module) -> nn.Sequential:
    """The network for images of bytes (N, 3, H, W)."""
    scaling = build_preprocess(PREPROCESS, torch.zeros(1, 3, 1, 1, dtype=torch.uint8))
    return nn.Sequential(scaling, network).train(network.training)


def _parts(dataset: Dataset) -> dict[str, Examples]:
    return {"train": dataset.train, "test": dataset.test}


def _with_inputs(dataset: Dataset, inputs: dict[str, Tensor]) -> Dataset:
    train, test = (Examples(inputs[name], part.labels) for name, part in _parts(dataset).items())
    return dataclasses.replace(dataset, train=train, test=test)


def _assembled(photographs: Photographs, found: dict[str, Tensor], skipped: dict[str, dict[str, str]]) -> Dataset:
    """The dataset of descriptors of those photographs whose rows were not skipped."""
    examples: list[Examples] = []
    reasons: dict[Path, str] = {}
    for name, part in photographs.parts().items():
        left_out = {int(row): reason for row, reason in skipped[name].items()}
        labels = [label for row, label in enumerate(part.labels) if row not in left_out]
        examples.append(Examples(found[name], torch.tensor(labels)))
        reasons |= {part.paths[row]: reason for row, reason in left_out.items()}
    train, test = examples
    return photographs.dataset(train, test, reasons)


def _origin_of_network(backbone: str, weights: Path | None, seed: int) -> dict[str, str]:
    """What network descriptors are of; those of the same images and network are the same."""
    return {
        "backbone": backbone,
        "weights": digest_of_weights(weights) if weights is not None else f"random from seed {seed}",
    }


def _digest_of_files(photographs: Photographs, part: Album) -> str:
    """Of the name, label, size and content of all photographs, in their order."""
    digest = hashlib.sha256()
    for path, label in zip(part.paths, part.labels, strict=True):
        try:
            content: list[int | str] = [path.stat().st_size, sha256_of(path)]
        except (PermissionError, FileNotFoundError) as error:
            content = [type(error).__name__]
        digest.update(json.dumps([photographs.name_of(path), label, *content]).encode())
    return digest.hexdigest()


def _digest_of_examples(examples: Examples) -> str:
    """Of all pixels and labels, in their order."""
    digest = hashlib.sha256(str(tuple(examples.inputs.shape)).encode())
    for tensor in (examples.inputs, examples.labels):
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _kept(path: Path, origin: dict[str, Any]) -> tuple[dict[str, Tensor], Any]:
    """The descriptors in a file, which must be of ``origin``, and the rows that were skipped for them."""
    try:
        tensors, found = read_tensors(path)
    except RunError as error:
        raise InputError(
            f"descriptors {str(path)!r} cannot be read: {error.__cause__}. Remove that file, or name another."
        ) from error
    found = found if isinstance(found, dict) else {}
    differing = [name for name in origin if found.get(name) != origin[name]]
    if differing:
        raise InputError(
            f"descriptors {str(path)!r} differ in {', '.join(differing)} from what is asked for now; name another "
            "file, or remove this one."
        )
    return tensors, found.get("skipped")


def _check_folder(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise InputError(f"descriptors {str(path)!r} cannot be kept: there is no folder {str(path.parent)!r}. Make it.")
