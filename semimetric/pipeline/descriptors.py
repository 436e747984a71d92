"""Features of a frozen network in place of images, computed once and cached in a file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core import ranks
from semimetric.core.errors import InputError, RunError
from semimetric.core.files import check_input, read_tensors, sha256_of, write_tensors
from semimetric.data import Dataset, Examples, Photographs
from semimetric.data.benchmarks.albums import Album
from semimetric.data.photographs.images import check_photo_options
from semimetric.encoders import build_encoder
from semimetric.encoders.photographs import PhotoTransform
from semimetric.pipeline.plan import NetworkSettings, digest_of_weights


def described(dataset: Dataset, network: NetworkSettings, seed: int, device: torch.device | str = "cpu") -> Dataset:
    """The dataset with unit features (N, d) of a backbone in place of its images.

    ``network.descriptors`` names a cache file. It is read if it belongs to the same dataset, network and weights,
    refused if it belongs to others, and written if it is not there. Without weights the network is drawn from ``seed``.
    """
    images = {name: _digest_of_examples(part) for name, part in _parts(dataset).items()}
    origin = {"images": images} | _origin_of_network(network, seed)
    cache = _cache(network)
    if cache is not None and cache.exists():
        return _with_inputs(dataset, _cached(cache, origin)[0])
    transform = photo_transform(network, seed, tuple(dataset.train.inputs.shape[1:]))
    found = {name: transform.inputs(part.inputs, device) for name, part in _parts(dataset).items()}
    if cache is not None:
        write_tensors(cache, found, origin)
    return _with_inputs(dataset, found)


def described_photographs(
    photographs: Photographs,
    network: NetworkSettings,
    seed: int,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """As ``described``, of photographs that are decoded batch by batch.

    The cache is matched by names, labels and contents of the files, so that none is decoded for it. Photographs that
    could not be decoded are in the cache with their reasons, and are left out of the dataset.
    """
    network = dataclasses.replace(network, side=network.side or photographs.benchmark.side)
    check_photo_options(network.side, network.fit, workers=None)
    origin: dict[str, Any] = {"side": network.side, "fit": network.fit} | _origin_of_network(network, seed)
    cache = _cache(network)
    if cache is not None:
        origin["photographs"] = {
            name: _digest_of_files(photographs, part) for name, part in photographs.parts().items()
        }
        if all(ranks.of_all(cache.exists())):
            return _assembled(photographs, *_cached(cache, origin))
    transform = photo_transform(network, seed)
    found: dict[str, Tensor] = {}
    skipped: dict[str, dict[str, str]] = {}
    for name, part, count in photographs.counted(progress):
        _, found[name], why = transform.read(part.paths, device, count)
        if len(found[name]) == 0:
            raise InputError(f"paths must name a photograph that can be decoded, and none of {len(part)} can.")
        skipped[name] = {str(row): why[path] for row, path in enumerate(part.paths) if path in why}
    if cache is not None:
        write_tensors(cache, found, origin | {"skipped": skipped})
    return _assembled(photographs, found, skipped)


def photo_transform(network: NetworkSettings, seed: int, shape: tuple[int, ...] = ()) -> PhotoTransform:
    """How photographs become model inputs: images of ``network.side``, or features of its backbone."""
    if not network.backbone:
        return PhotoTransform(network.side, network.fit)
    shape = shape or (3, network.side, network.side)
    backbone = build_encoder(network.backbone, shape, seed, weights=network.weights_file())
    return PhotoTransform(network.side, network.fit, backbone, network.backbone)


def _parts(dataset: Dataset) -> dict[str, Examples]:
    return {"train": dataset.train, "test": dataset.test}


def _with_inputs(dataset: Dataset, inputs: dict[str, Tensor]) -> Dataset:
    train, test = (Examples(inputs[name], part.labels) for name, part in _parts(dataset).items())
    return dataclasses.replace(dataset, train=train, test=test)


def _assembled(photographs: Photographs, found: dict[str, Tensor], skipped: dict[str, dict[str, str]]) -> Dataset:
    """The dataset of features of all photographs that were not skipped."""
    examples: list[Examples] = []
    reasons: dict[Path, str] = {}
    for name, part in photographs.parts().items():
        left_out = {int(row): reason for row, reason in skipped[name].items()}
        labels = [label for row, label in enumerate(part.labels) if row not in left_out]
        examples.append(Examples(found[name], torch.tensor(labels)))
        reasons |= {part.paths[row]: reason for row, reason in left_out.items()}
    train, test = examples
    return photographs.dataset(train, test, reasons)


def _origin_of_network(network: NetworkSettings, seed: int) -> dict[str, str]:
    """What identifies the network of cached features."""
    weights = network.weights_file()
    return {
        "backbone": network.backbone,
        "weights": digest_of_weights(weights) if weights is not None else f"random from seed {seed}",
    }


def _cache(network: NetworkSettings) -> Path | None:
    """The cache file, in a folder that is there."""
    if not network.descriptors:
        return None
    path = Path(network.descriptors)
    if path.exists():
        check_input(path, "a cache file of features")
    elif not path.parent.is_dir():
        raise InputError(f"descriptors {str(path)!r} cannot be kept: there is no folder {str(path.parent)!r}. Make it.")
    return path


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


def _cached(path: Path, origin: dict[str, Any]) -> tuple[dict[str, Tensor], Any]:
    """The features in a cache file, which must be of ``origin``, and the rows that were skipped."""
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
