"""The command line, run inside of the test's process or as it is installed."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer

from semimetric.cli.main import app, main

SCRIPT = Path(sys.executable).with_name("semimetric")
COMMAND = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "semimetric"]
"""What a user types."""


@dataclass(frozen=True)
class Done:
    """What a command returned and printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The only line of standard output; nothing may have gone wrong."""
        assert self.code == 0, self.err
        (line,) = self.out.splitlines()
        return json.loads(line)

    def sentence(self) -> str:
        """What was wrong: an error in one line, without a traceback."""
        assert self.code == 2, self.out + self.err
        (line,) = (line for line in self.err.splitlines() if not line.startswith(("warning: ", "note: ")))
        assert line.startswith("error: ")
        return line


def semimetric(*arguments: object) -> Done:
    """A command in this process: whatever is not caught there is raised here."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["semimetric", *map(str, arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def installed(line: str, folder: Path, **environment: str) -> Done:
    """A line as it is typed in a folder, in a process of its own."""
    name, *arguments = shlex.split(line)
    assert name == "semimetric"
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=folder, env=os.environ | environment, timeout=200
    )
    return Done(done.returncode, done.stdout, done.stderr)


def check_line(words: list[str]) -> None:
    """Raise if there is no such command or flag. Values may be placeholders, and a mention may leave arguments out."""
    command: Any = typer.main.get_command(app)
    context = command.context_class(command)
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        known = words[0] in command.list_commands(context)
        assert known, f"there is no command {words[0]}"
        named = command.resolve_command(context, list(words))[1]
        command, context, words = named, named.context_class(named, parent=context), words[1:]
    _, left, _ = command.make_parser(context).parse_args(list(words))
    assert not left, f"{command.name} takes no argument {left[0]}"
