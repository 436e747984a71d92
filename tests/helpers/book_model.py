"""What a label book must say, replayed in plain Python from what was acknowledged: an oracle without SQL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

RUN = ""
Identities = dict[str, tuple[int, str]]


class Refused(Exception):
    """A request that the book must refuse."""


@dataclass(frozen=True)
class Event:
    """One event; its number is its place in the book. ``of`` is a class, ``value`` another one, a name or a step."""

    step: int
    person: str
    event: str
    row: int | None = None
    of: int | None = None
    value: Any = None


@dataclass(frozen=True)
class Paper:
    """All events of a book, and the first names of its classes."""

    events: tuple[Event, ...] = ()
    first_names: tuple[str, ...] = ()

    def standing(self) -> list[tuple[int, Event]]:
        """Events that nobody took back, with their numbers."""
        undone = {event.value for event in self.events if event.event == "undo"}
        return [
            (number, event)
            for number, event in enumerate(self.events, 1)
            if event.event != "undo" and event.step not in undone
        ]

    def classes(self) -> list[tuple[str, bool]]:
        """Name of each class now, and whether it is in use."""
        found = [(name, False) for name in self.first_names]
        for _, event in self.standing():
            if event.of is not None:
                name = event.value if event.event == "rename class" else found[event.of][0]
                found[event.of] = name, event.event not in ("merge classes", "delete class")
        return found

    def used(self) -> list[tuple[int, str]]:
        """Classes in use, by number."""
        return [(number, name) for number, (name, used) in enumerate(self.classes()) if used]

    def number_of(self, name: str) -> int:
        """The class in use that has a name."""
        found = [number for number, known in self.used() if known == name]
        if not found:
            raise Refused(f"no class {name}")
        return found[0]

    def became(self, of: int | None, number: int) -> int | None:
        """The class into which a class went after an event."""
        for later, event in self.standing():
            if later > number and event.of == of and event.event in ("merge classes", "delete class"):
                of = event.value
        return of

    def held(self) -> dict[int, tuple[str, str, str | None]]:
        """Person, event and label of each row that has an event; what people say comes before the run."""
        last: dict[int, tuple[int, Event]] = {}
        for number, event in self.standing():
            if event.row is not None and (event.person != RUN or last.get(event.row, (0, event))[1].person == RUN):
                last[event.row] = number, event
        names = self.classes()
        found = {}
        for row, (number, event) in last.items():
            of = self.became(event.of, number)
            found[row] = event.person, event.event, None if of is None else names[of][0]
        return found

    def labels(self, count: int) -> list[str | None]:
        """The label of each row."""
        held = self.held()
        return [held[row][2] if row in held else None for row in range(count)]

    def changes(self) -> int:
        """How many steps of people stand."""
        return len({event.step for _, event in self.standing() if event.person != RUN})

    def added(self, *events: Event) -> Paper:
        """The book with more events; that of a run is a step by itself, those of a person are one."""
        first, found = len(self.events) + 1, list(self.events)
        for event in events:
            found.append(replace(event, step=len(found) + 1 if event.person == RUN else first))
        after = replace(self, events=tuple(found))
        names = [name for _, name in after.used()]
        if len({*names}) != len(names):
            raise Refused("two classes with one name")
        return after

    def with_class(self, name: str, person: str) -> tuple[Paper, int, list[Event]]:
        """The book in which a name is a class, its number, and the event that is needed for it."""
        now = self.classes()
        owners = {known: number for number, (known, _) in reversed([*enumerate(now)])}
        owners |= {known: number for number, known in self.used()}
        number = owners.get(name)
        if person == RUN and name in self.first_names:  # it knows the classes by their first names
            first = self.first_names.index(name)
            number = first if owners[now[first][0]] == first else number
        if number is not None:
            return self, number, [] if now[number][1] else [Event(0, person, "add class", of=number)]
        after = replace(self, first_names=(*self.first_names, name))
        return after, len(self.first_names), [Event(0, person, "add class", of=len(self.first_names))]

    def labelled(self, wanted: dict[int, str | None], person: str, without: str = "clear") -> Paper:
        """The book after rows were given labels, or the event ``without`` one."""
        paper, events, numbers = self, [], {}
        for name in dict.fromkeys(name for name in wanted.values() if name is not None):
            paper, numbers[name], new = paper.with_class(name, person)
            events += new
        for row, name in wanted.items():
            of = None if name is None else numbers[name]
            events.append(Event(0, person, without if name is None else "label", row, of))
        return paper.added(*events)

    def brought(self, labels: list[str | None]) -> Paper:
        """The book with the labels of a run that learned from it, where it says nothing of a row."""
        said = {event.row for event in self.events}
        new = {row: label for row, label in enumerate(labels) if label is not None and row not in said}
        return self.labelled(new, RUN) if new else self

    def identities(self) -> Identities:
        """Number and first name of each class in use."""
        return {name: (number, self.first_names[number]) for number, name in self.used()}

    def number_learned(self, name: str, learned: Identities) -> int | None:
        """The class that a run learned under a name, if this book has it."""
        number, first = learned.get(name, (len(self.first_names), ""))
        if number < len(self.first_names) and self.first_names[number] == first:
            return number
        if name in self.first_names:
            return self.first_names.index(name)
        return next((number for number, known in self.used() if known == name), None)

    def called(self, name: str, learned: Identities) -> str | None:
        """What a class that a run learned is called now."""
        number, used = self.number_learned(name, learned), dict(self.used())
        if number is not None and number not in used:
            number = self.became(number, 0)
        return None if number is None else used.get(number)

    def undone(self, person: str) -> Paper:
        """The book after a person took back a step."""
        steps = [event.step for _, event in self.standing() if event.person == person]
        return self.added(Event(0, person, "undo", value=max(steps))) if steps else self

    def with_change_of_class(self, what: str, person: str, name: str, to: str = "") -> Paper:
        """The book after a class was added, renamed, merged or deleted."""
        if what == "add":
            paper, _, events = self.with_class(name, person)
            return paper.added(*events)
        of = self.number_of(name)
        if what == "rename":
            return self.added(Event(0, person, "rename class", of=of, value=to))
        if what == "delete":
            return self.added(Event(0, person, "delete class", of=of))
        into = self.number_of(to)
        if of == into:
            raise Refused("into itself")
        return self.added(Event(0, person, "merge classes", of=of, value=into), Event(0, person, "add class", of=into))


def of_run(labels: dict[int, str]) -> Paper:
    """The book of a run that has these labels, before anyone said anything."""
    paper = Paper()
    for name in sorted({*labels.values()}):
        paper = paper.with_change_of_class("add", RUN, name)
    return paper.labelled(dict(labels), RUN)
