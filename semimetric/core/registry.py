"""Registry of named objects: built-in, registered at run time, or offered by installed packages."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

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
    def _offered(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._group)}

    def register(self, name: str, thing: T) -> T:
        """Add an object under a new name, and return it."""
        known = self._loaded.get(name)
        again = known is not None and _origin(known) == _origin(thing)  # a notebook cell that is run twice
        if name in self and not again:
            raise InputError(f"there is a {self._what} {name!r} already. Register yours under another name.")
        self._loaded[name] = thing
        return thing

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            if name in self._homes:
                module, _, attribute = self._homes[name].partition(":")
                self._loaded[name] = getattr(import_module(module), attribute)
            else:
                self._loaded[name] = self._load_offered(self._offered[name])
        return self._loaded[name]

    def _load_offered(self, point: EntryPoint) -> T:
        try:
            return cast(T, point.load())
        except Exception as error:  # another package may raise anything
            package = f" of {point.dist.name}" if point.dist else ""
            raise InputError(
                f"{self._what} {point.name!r}{package} cannot be loaded from {point.value} "
                f"({type(error).__name__}: {error}). Repair or remove that package."
            ) from error

    def _usable(self) -> dict[str, T]:
        """All objects; one that cannot be loaded is left out with a warning, so that a listing still works."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except InputError as error:
                warnings.warn(str(error), stacklevel=4)
        return found

    def items(self) -> ItemsView[str, T]:
        """Names and objects that can be loaded."""
        return self._usable().items()

    def values(self) -> ValuesView[T]:
        """Objects that can be loaded."""
        return self._usable().values()

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


def _origin(thing: object) -> tuple[object, object]:
    """Where something was defined; for an instance without a name, itself."""
    return getattr(thing, "__module__", None), getattr(thing, "__qualname__", thing)
