"""Command-line options made from settings: every dataclass field is a flag, its help the field's own sentence."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer


def settings_options(groups: Iterable[tuple[str, type[Any]]]) -> dict[str, inspect.Parameter]:
    """One keyword parameter per distinct field name; a field that several groups share is one flag."""
    parameters: dict[str, inspect.Parameter] = {}
    for panel, kind in groups:
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if field.name not in parameters:
                parameters[field.name] = _parameter(field, hints[field.name], panel)
    return parameters


def _parameter(field: dataclasses.Field[Any], hint: Any, panel: str) -> inspect.Parameter:
    flag = "--" + field.name.replace("_", "-")
    names = f"{flag}/--no-{flag[2:]}" if hint is bool else flag
    choices = f" One of {', '.join(get_args(hint))}." if get_origin(hint) is Literal else ""
    help = f"{field.metadata['help']}{choices} (Default {field.default}, or the preset's.)"
    plain = str if get_origin(hint) is Literal else hint
    option = typer.Option(names, help=help, rich_help_panel=panel, show_default=False)
    annotation: Any = Annotated[plain | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


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
