"""Command-line options made from settings: every dataclass field is a flag, its help the field's own sentence."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer


def settings_options(groups: Iterable[tuple[str, type[Any]]]) -> dict[str, inspect.Parameter]:
    """One keyword parameter per distinct field name; a field that several groups share is one flag.

    Groups that share a flag are named in its help, with their own sentence and default where those differ; its
    choices are those of the first.
    """
    owners: dict[str, list[tuple[str, type[Any]]]] = {}
    for panel, kind in groups:
        for field in dataclasses.fields(kind):
            owners.setdefault(field.name, []).append((panel, kind))
    return {name: _parameter(name, held_by) for name, held_by in owners.items()}


def _parameter(name: str, owners: list[tuple[str, type[Any]]]) -> inspect.Parameter:
    panel, kind = owners[0]
    hint = get_type_hints(kind)[name]
    flag = "--" + name.replace("_", "-")
    names = f"{flag}/--no-{flag[2:]}" if hint is bool else flag
    choices = f" One of {', '.join(get_args(hint))}." if get_origin(hint) is Literal else ""
    help = f"{_sentences(name, owners)}{choices} ({_defaults(name, owners)}, or the preset's.)"
    plain = str if get_origin(hint) is Literal else hint
    panel = panel if len(owners) == 1 else "Several methods"
    option = typer.Option(names, help=help, rich_help_panel=panel, show_default=False)
    annotation: Any = Annotated[plain | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _sentences(name: str, owners: list[tuple[str, type[Any]]]) -> str:
    """The owners' sentences about a field, each after the owners that share it where there are several."""
    by_sentence: dict[str, list[str]] = {}
    for panel, kind in owners:
        by_sentence.setdefault(_field(kind, name).metadata["help"], []).append(_short(panel))
    if len(owners) == 1:
        return next(iter(by_sentence))
    return " ".join(f"{', '.join(names)}: {sentence}" for sentence, names in by_sentence.items())


def _defaults(name: str, owners: list[tuple[str, type[Any]]]) -> str:
    """The default, with the owners that have another."""
    by_panel = {panel: _field(kind, name).default for panel, kind in owners}
    first, *others = by_panel.items()
    differing = [f"{_short(panel)}: {value}" for panel, value in others if value != first[1]]
    return "; ".join([f"Default {'none' if first[1] == '' else first[1]}", *differing])


def _short(panel: str) -> str:
    return panel.removeprefix("Method ")


def _field(kind: type[Any], name: str) -> dataclasses.Field[Any]:
    return next(field for field in dataclasses.fields(kind) if field.name == name)


def with_options(parameters: dict[str, inspect.Parameter]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a function that ends in ``**settings`` these options as its visible signature."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(function, include_extras=True)
        own = [
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]

        def command(**values: Any) -> Any:
            return function(**values)

        command.__name__ = function.__name__
        command.__doc__ = function.__doc__
        all_parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + list(parameters.values())
        command.__signature__ = inspect.Signature(all_parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in all_parameters}
        return command

    return decorate
