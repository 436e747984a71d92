"""Whether a run was made here, by this user on this machine: only then are files opened because the run names them.

``origin.json`` has seals (``semimetric.core.origin``) under what the run names: the places of its examples, and files
of its network. A stranger cannot make one, and names that were changed do not fit theirs.
"""

from __future__ import annotations

from typing import Any

from semimetric.core.origin import seal_of, was_sealed_here
from semimetric.model.spec import ExampleNames
from semimetric.training import Run

ORIGIN = "origin.json"

FILES = ("weights", "descriptors")
"""Settings of the network that name files."""


def write_origin(run: Run, examples: ExampleNames, before: ExampleNames | None = None) -> None:
    """Seal what a run names. With ``before`` the seal of those examples is kept, as the new ones are yet to come."""
    places = [seal_of(_places(each)) for each in (before, examples) if each is not None]
    if None not in places:
        run.write(ORIGIN, {"places": places, "files": seal_of(named_files(run.config()))})


def has_own_places(run: Run, examples: ExampleNames) -> bool:
    """Whether the examples are where this user on this machine told the run that they are."""
    said = _places(examples)
    places = _seals(run).get("places")
    return isinstance(places, list) and any(was_sealed_here(seal, said) for seal in places)


def has_own_files(run: Run) -> bool:
    """Whether the network's files, if there are any, are those that this user on this machine gave to the run."""
    files = named_files(run.config())
    return not any(files) or was_sealed_here(_seals(run).get("files"), files)


def named_files(config: dict[str, Any]) -> list[Any]:
    """The files that a config names."""
    network = config["plan"].get("network")
    return [network.get(name) for name in FILES] if isinstance(network, dict) else []


def _places(examples: ExampleNames) -> dict[str, Any]:
    return {"source": examples.source, "names": list(examples.names)}


def _seals(run: Run) -> dict[str, Any]:
    found = run.read(ORIGIN)
    return found if isinstance(found, dict) else {}
