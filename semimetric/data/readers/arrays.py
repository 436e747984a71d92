"""A user's own arrays: a matrix of features in .npy and .npz files, with labels and names in the latter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from semimetric.core.errors import InputError
from semimetric.data.readers.delimited import find_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

ARRAY_SUFFIXES = (".npy", ".npz")
FEATURE_ARRAYS, LABEL_ARRAYS, NAME_ARRAYS = ("X", "features"), ("y", "labels", "target"), ("names", "ids")
"""Usual names of the arrays in an .npz file."""


def read_arrays(
    source: Path, label_column: str | None, id_column: str | None
) -> tuple[Array, Sequence[object] | None, Sequence[object] | None]:
    """Features (N, d), labels and ids of an array file."""
    with source.open("rb") as file:
        arrays = _arrays_in(file, source)
        names = list(arrays)
        label = find_column(names, label_column, LABEL_ARRAYS, "label_column", source)
        identifier = find_column(names, id_column, NAME_ARRAYS, "id_column", source)
        features = _feature_array(arrays, [name for name in names if name not in (label, identifier)], source)
        wanted = (label, identifier)
        labels, ids = (None if name is None else _texts_of(arrays, name, len(features), source) for name in wanted)
        return features, labels, ids


LARGEST_UNPACKED, MOST_TIMES = 1 << 29, 100
"""Bytes that any archive may unpack to, and times its own size that a larger one may."""


def _arrays_in(file: BinaryIO, source: Path) -> Mapping[str, Array]:
    """Open .npz without reading the arrays; the single array of .npy is called X."""
    import numpy as np

    try:
        loaded = np.load(file, allow_pickle=False)
    except Exception as error:  # a damaged file can raise almost anything
        raise _unreadable(source, error) from error
    kind = ".npy" if isinstance(loaded, np.ndarray) else ".npz"
    if kind != source.suffix.lower():
        raise InputError(f"{source} holds what a {kind} file holds. Rename it to {source.with_suffix(kind).name}.")
    if kind == ".npy":
        return {"X": loaded}
    unpacked = sum(part.file_size for part in loaded.zip.infolist())
    if unpacked > max(LARGEST_UNPACKED, MOST_TIMES * source.stat().st_size):
        raise InputError(
            f"{source} unpacks to {unpacked / 2**30:.1f} GiB, more than {MOST_TIMES} times its own size: it may be "
            "made to fill the memory. Write it again with np.savez, which does not compress."
        )
    archive: Mapping[str, Array] = loaded
    return archive


def _unreadable(what: object, error: Exception) -> InputError:
    if "Object arrays" in str(error):
        return InputError(
            f"{what} holds Python objects, which are never unpickled. Save numbers or text, for example "
            "labels.astype(str), with '' where there is no label."
        )
    return InputError(
        f"{what} cannot be read ({type(error).__name__}): it is damaged or was not written by NumPy. Write it again "
        "with np.save or np.savez; pickled objects are never loaded."
    )


def _array(arrays: Mapping[str, Array], name: str, source: Path) -> Array:
    try:
        found = arrays[name]
        _ = found.shape  # a file of an archive that is not an array has none
        return found
    except Exception as error:  # a damaged file can raise almost anything
        raise _unreadable(f"array {name!r} of {source}", error) from error


def _feature_array(arrays: Mapping[str, Array], names: Sequence[str], source: Path) -> Array:
    """Return the array under a usual name, or else the only one with two dimensions."""
    name = find_column(names, None, FEATURE_ARRAYS, "", source)
    if name is None:
        shapes = {name: _array(arrays, name, source).shape for name in names}
        matrices = [name for name, shape in shapes.items() if len(shape) == 2]
        if len(matrices) != 1:
            raise InputError(
                f"{source} must have an array X or features, or just one with two dimensions, but has "
                f"{', '.join(f'{name} {shape}' for name, shape in shapes.items()) or 'none'}. Save the features as X."
            )
        name = matrices[0]
    features = _array(arrays, name, source)
    if features.ndim != 2 or features.dtype.kind not in "biuf":
        raise InputError(
            f"{name} of {source} must be a matrix of numbers with a row for each example, but is {features.dtype} of "
            f"shape {features.shape}. Flatten it with X.reshape(len(X), -1), or turn it into numbers."
        )
    return features


def _texts_of(arrays: Mapping[str, Array], name: str, count: int, source: Path) -> Sequence[object]:
    values = _array(arrays, name, source)
    if values.shape not in ((count,), (count, 1)) or values.dtype.kind not in "biufUS":
        raise InputError(
            f"{name} of {source} must be text or numbers, one for each of {count} rows, but is {values.dtype} of shape "
            f"{values.shape}. Save an array of shape ({count},)."
        )
    return list(values.reshape(-1))
