"""Options made from settings: every dataclass field is a flag, and its help is the field's own sentence.

A command shows the everyday ones. ``--method NAME --help`` adds those of the training and of that method, and
``--help-all`` all of them. Arguments that name another flag are parsed with all of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from semimetric.methods.registry import METHODS
from semimetric.pipeline.plan import GROUPS

EVERYDAY = ("labels_per_class", "encoder", "weights", "epochs")
"""Settings that every help shows."""

PANELS = {
    "network": "Network",
    "split": "Benchmark split",
    "training": "Training",
    "pretraining": "Softmax pretraining",
}
GENERAL = [(PANELS[name], kind) for name, kind in GROUPS.items()]

Owners = list[tuple[str, type[Any]]]
"""Panels of the help that show a setting, each with the settings class that holds it."""


def show_all(context: typer.Context, value: bool) -> None:
    """Print the whole help; the command has been built with all options."""
    if value:
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", callback=show_all, is_eager=True, help="Show the options of all methods, and exit."),
]
Components = Annotated[int | None, typer.Option(help="Dimensions of the embedding; 0 keeps all of the network's.")]


def with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a command that ends in ``**settings``: it takes all settings as options."""
    function.takes_settings = True  # type: ignore[attr-defined]
    return function


def for_arguments(function: Callable[..., Any], arguments: Sequence[str]) -> Callable[..., Any]:
    """The command with the options that some arguments call for."""
    if not hasattr(function, "takes_settings"):
        return function
    everyday = settings_options(GENERAL, dict.fromkeys(EVERYDAY, "the method's"))
    options = {name: option for name, option in everyday.items() if name in EVERYDAY}
    named = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    method = _method_in(arguments)
    if "--help" in named and method:
        kind = METHODS[method]
        options |= settings_options([*GENERAL, (f"Method {method}", kind.Settings)], kind.training_defaults)
    if not named <= _known_flags(function, options) | {"--help"}:
        options = settings_options([*GENERAL, *((f"Method {name}", kind.Settings) for name, kind in METHODS.items())])
    return _with_options(function, options)


def _known_flags(function: Callable[..., Any], options: Iterable[str]) -> set[str]:
    names = {*inspect.signature(function).parameters, *options} - {"help_all"}
    flags = {name.removeprefix("as_").replace("_", "-") for name in names}
    return {f"--{flag}" for flag in flags} | {f"--no-{flag}" for flag in flags}


def _method_in(arguments: Sequence[str]) -> str:
    """The value of ``--method``, if it is a method's name."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    value = words[words.index("--method") + 1] if "--method" in words[:-1] else ""
    return value if value in METHODS else ""


def settings_options(
    groups: Iterable[tuple[str, type[Any]]], in_force: Mapping[str, Any] | None = None
) -> dict[str, inspect.Parameter]:
    """One keyword parameter per setting; a setting that several groups share is one flag.

    The help of a shared flag names the groups, with their sentences and defaults where those differ. ``in_force`` are
    defaults that replace those of the settings.
    """
    owners: dict[str, Owners] = {}
    for panel, kind in groups:
        for field in dataclasses.fields(kind):
            owners.setdefault(field.name, []).append((panel, kind))
    owners.pop("components", None)  # an option of the commands themselves
    return {name: _parameter(name, held_by, in_force or {}) for name, held_by in owners.items()}


def _parameter(name: str, owners: Owners, in_force: Mapping[str, Any]) -> inspect.Parameter:
    panel, kind = owners[0]
    hint = get_type_hints(kind)[name]
    flag = "--" + name.replace("_", "-")
    names = f"{flag}/--no-{flag[2:]}" if hint is bool else flag
    choices = f" One of {', '.join(get_args(hint))}." if get_origin(hint) is Literal else ""
    default = f"Default {in_force[name]}" if name in in_force else _defaults(name, owners)
    plain = str if get_origin(hint) is Literal else hint
    option = typer.Option(
        names,
        help=f"{_sentences(name, owners)}{choices} ({default}, or the preset's.)",
        rich_help_panel=panel if len(owners) == 1 else "Several methods",
        show_default=False,
    )
    annotation: Any = Annotated[plain | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _sentences(name: str, owners: Owners) -> str:
    """The owners' sentences about a setting; where there are several, each after the owners that share it."""
    by_sentence: dict[str, list[str]] = {}
    for panel, kind in owners:
        by_sentence.setdefault(_field(kind, name).metadata["help"], []).append(_short(panel))
    if len(owners) == 1:
        return next(iter(by_sentence))
    return " ".join(f"{', '.join(names)}: {sentence}" for sentence, names in by_sentence.items())


def _defaults(name: str, owners: Owners) -> str:
    """The default, with the owners that have another."""
    by_panel = {panel: _field(kind, name).default for panel, kind in owners}
    first, *others = by_panel.items()
    differing = [f"{_short(panel)}: {value}" for panel, value in others if value != first[1]]
    return "; ".join([f"Default {'none' if first[1] == '' else first[1]}", *differing])


def _short(panel: str) -> str:
    return panel.removeprefix("Method ")


def _field(kind: type[Any], name: str) -> dataclasses.Field[Any]:
    return next(field for field in dataclasses.fields(kind) if field.name == name)


def _with_options(function: Callable[..., Any], options: dict[str, inspect.Parameter]) -> Callable[..., Any]:
    """The function with these options in place of its ``**settings``."""
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
    named = {parameter.name for parameter in own}
    more = [option for name, option in options.items() if name not in named]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + more
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
