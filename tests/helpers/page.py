"""The page of a run, served by the command in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CHANGES = {"X-Semimetric": "page"}
"""What the page's script sends with every change."""


@dataclass
class Served:
    """A server: the folder of its run, its address and its process."""

    place: Path
    url: str
    process: subprocess.Popen[str]

    def restart(self) -> None:
        """Kill it, and serve the same run again."""
        self.kill()
        again = serve(self.place / "run")
        self.url, self.process = again.url, again.process

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C: the exit code, and what the server said at the end."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGINT)
        said = self.process.stdout.read()
        return self.process.wait(), said

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def serve(run: Path, *arguments: str) -> Served:
    """Start ``semimetric serve`` on a free port, and wait until it answers."""
    command = [sys.executable, "-m", "semimetric", "serve", str(run), "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if found := re.search(r"http://\S+", line):
            return Served(run.parent, found[0], process)
    raise AssertionError(said)
