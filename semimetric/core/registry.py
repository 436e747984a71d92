"""Registry of named objects: built-in, registered at run time, or offered by installed packages."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from semimetric.core.errors import InputError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to objects that are imported on first use.

    Parameters
    ----------
    what : str
        Kind of object, for messages; for example "method".
    group : str
        Entry-point group in which installed packages offer objects.
    built_in : mapping of str to str
        "module:attribute" of each built-in object.
    """

    def __init__(self, what: str, group: str, built_in: Mapping[str, str]) -> None:
        self._what, self._group = what, group
        self._homes = dict(built_in)
        self._loaded: dict[str, T] = {}

    @cached_property
    def _offered(self) -> dict[str, str]:
        return {point.name: point.value for point in entry_points(group=self._group)}

    def register(self, name: str, thing: T) -> T:
        """Add an object under a new name, and return it."""
        if name in self:
            raise InputError(f"there is a {self._what} {name!r} already. Register yours under another name.")
        self._loaded[name] = thing
        return thing

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            home = self._homes.get(name) or self._offered[name]
            module, _, attribute = home.partition(":")
            self._loaded[name] = getattr(import_module(module), attribute)
        return self._loaded[name]

    def find(self, name: str) -> T:
        """The object of this name; the error for an unknown name lists all names and suggests the closest."""
        self.check(name)
        return self[name]

    def check(self, name: str) -> None:
        """Refuse an unknown name, without importing anything."""
        if name not in tuple(self):
            near = difflib.get_close_matches(str(name).lower(), self, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{self._what} must be one of {', '.join(self)}, got {name!r}.{hint}")

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._homes, *self._loaded, *self._offered)))

    def __len__(self) -> int:
        return sum(1 for _ in self)
