"""Things by name: those of this package, those that a program registers, and those that installed packages offer."""

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
    """A mapping from names to things that are imported when they are first asked for.

    Parameters
    ----------
    what : str
        What a thing is called in messages, such as "method".
    group : str
        Entry-point group in which installed packages offer further ones.
    built_in : mapping of str to str
        "module:attribute" of each thing of this package.
    """

    def __init__(self, what: str, group: str, built_in: Mapping[str, str]) -> None:
        self._what, self._group = what, group
        self._homes = dict(built_in)
        self._loaded: dict[str, T] = {}

    @cached_property
    def _offered(self) -> dict[str, str]:
        return {point.name: point.value for point in entry_points(group=self._group)}

    def register(self, name: str, thing: T) -> T:
        """Add a thing under a name of its own, and return it."""
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
        """The thing of this name; for an unknown one the error names all, and the nearest."""
        self.check(name)
        return self[name]

    def check(self, name: str) -> None:
        """Refuse an unknown name; nothing is imported."""
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
