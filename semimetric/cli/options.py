"""Options made from settings: every dataclass field is a flag, and its help is the field's own sentence.

A command shows the everyday ones. ``--method NAME --help`` adds those of the training and of that method, and
``--help-all`` all of them. Arguments that name another flag are parsed with all of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from semimetric.core.errors import InputError
from semimetric.core.settings import check_type
from semimetric.core.toml import read_toml
from semimetric.data.benchmarks.registry import DATASETS
from semimetric.methods.registry import METHODS
from semimetric.pipeline.plan import GROUPS

if TYPE_CHECKING:
    from semimetric.methods.base import Method

EVERYDAY = ("labels_per_class", "encoder", "weights", "epochs")
"""Settings that every help shows."""

BY_DATA = (*EVERYDAY, "backbone", "side", "init", "preprocess", "passes", "selection", "k")
"""Settings whose defaults ``pipeline/resolve.py`` fits to the data."""

DEPENDS = "The default depends on data, encoder and preset; --show-settings prints it."

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


def _read_config(context: typer.Context, value: Path | None) -> Path | None:
    """Make the values of a TOML file the defaults of the command, so that options win over them."""
    if value is not None and not context.resilient_parsing:
        parameters = inspect.signature(context.command.callback or show_all).parameters
        known = {name: parameter for name, parameter in parameters.items() if name not in ("config", "help_all")}
        values = {name.replace("-", "_"): given for name, given in read_toml(value).items()}
        for name, given in values.items():
            _check_config_value(value, name, given, known)
        context.default_map = {**(context.default_map or {}), **values}
    return value


def _check_config_value(file: Path, name: str, value: Any, known: Mapping[str, inspect.Parameter]) -> None:
    """Refuse a key that is no option of the command, and a value of another type."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"{file} has a setting {name!r} that this command does not know.{hint} A key is the name of an option, "
            "with _ for -."
        )
    declared = get_args(known[name].annotation)[0]
    plain: type[Any] = next((kind for kind in get_args(declared) or (declared,) if kind in (bool, int, float)), str)
    try:
        if not isinstance(check_type(value, plain, name), plain):
            raise InputError(f"{name} must be a text in quotes, got {value!r}.")
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read_config,
        is_eager=True,
        help="TOML file with options, as --show-settings prints; options of the command line win over it.",
        show_default=False,
    ),
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
    everyday = settings_options(GENERAL, varying=EVERYDAY)
    options = {name: option for name, option in everyday.items() if name in EVERYDAY}
    named = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    method = _method_in(arguments)
    if method and ("--help" in named or "-h" in arguments):
        kind = METHODS[method]
        groups = [*GENERAL, (f"Method {method}", kind.Settings)]
        options |= settings_options(groups, kind.training_defaults, _varying([kind]))
    if "--config" in named or not named <= _known_flags(function, options) | {"--help"}:
        groups = [*GENERAL, *((f"Method {name}", kind.Settings) for name, kind in METHODS.items())]
        by_method = {name for kind in METHODS.values() for name in kind.training_defaults}
        options = settings_options(groups, varying=_varying(METHODS.values()) | by_method)
    return _with_options(function, options)


def _varying(methods: Iterable[type[Method[Any]]]) -> set[str]:
    """Settings of some methods whose default is another on other data, benchmarks, presets or encoders."""
    by_method = (
        values
        for method in methods
        for kinds in (method.defaults_on, method.defaults_with)
        for values in kinds.values()
    )
    by_dataset = (values for spec in DATASETS.values() for values in spec.presets.values())
    return {*BY_DATA, *(name for values in (*by_method, *by_dataset) for name in values)}


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
    groups: Iterable[tuple[str, type[Any]]],
    in_force: Mapping[str, Any] | None = None,
    varying: Collection[str] = (),
) -> dict[str, inspect.Parameter]:
    """One keyword parameter per setting; a setting that several groups share is one flag.

    The help of a shared flag names the groups, with their sentences and defaults where those differ. ``in_force`` are
    defaults that replace those of the settings. Of ``varying`` settings the help names no default.
    """
    owners: dict[str, Owners] = {}
    for panel, kind in groups:
        for field in dataclasses.fields(kind):
            owners.setdefault(field.name, []).append((panel, kind))
    owners.pop("components", None)  # an option of the commands themselves
    defaults = {name: f"Default {value}." for name, value in (in_force or {}).items()} | dict.fromkeys(varying, DEPENDS)
    return {
        name: _parameter(name, held_by, defaults.get(name) or _defaults(name, held_by))
        for name, held_by in owners.items()
    }


def _parameter(name: str, owners: Owners, default: str) -> inspect.Parameter:
    panel, kind = owners[0]
    hint = get_type_hints(kind)[name]
    flag = "--" + name.replace("_", "-")
    names = f"{flag}/--no-{flag[2:]}" if hint is bool else flag
    choices = f" One of {', '.join(get_args(hint))}." if get_origin(hint) is Literal else ""
    plain = str if get_origin(hint) is Literal else hint
    option = typer.Option(
        names,
        help=f"{_sentences(name, owners)}{choices} ({default})",
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
    return "; ".join([f"Default {'none' if first[1] == '' else first[1]}", *differing]) + "."


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
