"""The command ``semimetric``: its sub-commands, loaded when they are used, and how errors and warnings are shown."""

from __future__ import annotations

import re
import sys
import warnings
from difflib import get_close_matches
from io import TextIOWrapper
from typing import Annotated, Any

import typer
import typer.core

import semimetric
from semimetric.cli.console import say, show_warning, stderr
from semimetric.cli.entry import INTERRUPTED, out_of_memory, tell_interrupted
from semimetric.cli.options import for_arguments
from semimetric.core.errors import SemimetricError
from semimetric.core.registry import Registry
from semimetric.reporting.terminal import marked

COMMANDS: Registry[Any] = Registry(
    "command",
    "semimetric.commands",
    {
        "fit": "semimetric.cli.fit:fit",
        "evaluate": "semimetric.cli.evaluate:evaluate",
        "search": "semimetric.cli.runs:search",
        "predict": "semimetric.cli.predict:predict",
        "embed": "semimetric.cli.runs:embed",
        "suggest": "semimetric.cli.runs:suggest",
        "serve": "semimetric.cli.serve:serve",
        "report": "semimetric.cli.report:report",
        "compare": "semimetric.cli.report:compare",
        "index": "semimetric.cli.runs:index",
        "export": "semimetric.cli.runs:export",
        "add": "semimetric.cli.examples:add",
        "labels": "semimetric.cli.examples:labels",
        "info": "semimetric.cli.info:info",
        "verify": "semimetric.cli.verify:verify",
        "tune": "semimetric.cli.tune:tune",
        "reproduce": "semimetric.cli.reproduce:reproduce",
        "methods": "semimetric.cli.lists:methods",
        "datasets": "semimetric.cli.lists:datasets_app",
    },
)
"""A function with Typer's annotations, or a ``typer.Typer`` with sub-commands, by the name of the command."""


def register_command(name: str, command: Any) -> Any:
    """Add a sub-command to ``semimetric``: a function with Typer's annotations, or a ``typer.Typer``."""
    return COMMANDS.register(name, command)


class LazyGroup(typer.core.TyperGroup):
    """Builds a sub-command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        return [name for name, _ in COMMANDS.items()]

    def get_command(self, ctx: Any, cmd_name: str, arguments: tuple[str, ...] = ()) -> Any:
        """The command, with the options that its ``arguments`` call for."""
        if cmd_name not in COMMANDS:
            return None
        found = COMMANDS[cmd_name]
        if isinstance(found, typer.Typer):
            command = typer.main.get_command(found)
        else:
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            single.command(cmd_name)(for_arguments(found, arguments))
            command = typer.main.get_command(single)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C is one sentence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            tell_interrupted()
            raise typer.Exit(INTERRUPTED) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name."""
        if args and args[0] in COMMANDS:
            return args[0], self.get_command(ctx, args[0], tuple(args[1:])), args[1:]
        if args and (close := get_close_matches(args[0], self.list_commands(ctx), 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    help="Semi-supervised deep metric learning: an embedding from a few labels and many unlabelled examples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # all commands inherit it
)


def _show_version(value: bool) -> None:
    if value:
        say(semimetric.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Version.")] = False,
) -> None:
    pass


def _with_flags(message: str) -> str:
    """The message with the command-line names of two arguments of ``read_collection``."""
    return re.sub(r"\b(label|id)_column\b", r"--\1-column", message)


def main() -> None:
    """Run the command line; errors raised on purpose, and warnings, are one sentence without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name may be no text
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            app()
    except SemimetricError as error:
        _fail(_with_flags(str(error)), error)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        sentence = out_of_memory(error)
        if sentence is None and not isinstance(error, OSError):
            raise
        _fail(sentence or f"{error}. Check that path and its permissions.", error)


def _fail(sentence: str, error: BaseException) -> None:
    stderr.print(marked("error:", "red", sentence))
    raise SystemExit(2) from error
