"""Screenshots for the documentation: a report, the page and the terminal. Run: python benchmarks/screenshots.py.

Needs the extras figures and page, a Chromium, and the package playwright. Writes docs/report.png, docs/page.png and
docs/terminal.png.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from browsing import browser, served
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent.parent / "docs"
FIT = ["fit", "--dataset", "digits", "--labels-per-class", "5", "--seed", "0", "--threads", "1", "--out"]


def in_terminal(arguments: list[str]) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {"COLUMNS": "100", "LINES": "40", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "semimetric", *arguments], stdout=theirs, stderr=theirs, env=os.environ | environment
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        said += part
    os.close(ours)
    if process.wait():
        raise SystemExit(said.decode(errors="replace"))
    return said.decode(errors="replace")


def last_screen(said: str, lines: int = 22) -> str:
    """The last lines as they stay on the screen, without what was overwritten."""
    kept = [line.rsplit("\r", 1)[-1] for line in said.replace("\r\n", "\n").split("\n")]
    return "\n".join([line for line in kept if line.strip()][-lines:])


def terminal_picture(chromium: Any, run: Path, epochs: str, said: str) -> None:
    """The end of a fit, below its command."""
    console = Console(record=True, width=100, file=io.StringIO())
    words = " ".join([*FIT, "runs/digits", "--epochs", epochs])
    console.print(Text(f"$ semimetric {words}"))
    console.print(Text.from_ansi(last_screen(said).replace(str(run), "runs/digits")))
    drawn = console.export_svg(title="semimetric")
    page = chromium.new_page(viewport={"width": 1240, "height": 800})
    page.set_content(f'<body style="margin:0;width:1100px">{drawn}</body>')
    page.locator("svg").first.screenshot(path=str(DOCS / "terminal.png"))
    page.close()


def report_picture(chromium: Any, folder: Path) -> None:
    """The top of a report."""
    page = chromium.new_page(viewport={"width": 1180, "height": 1000})
    page.goto(f"file://{folder / 'report' / 'report.html'}")
    page.wait_for_selector("#map-legend button")
    page.screenshot(path=str(DOCS / "report.png"))
    page.close()


def page_picture(chromium: Any, address: str) -> None:
    """The page after a label and a lasso."""
    page = chromium.new_page(viewport={"width": 1280, "height": 820})
    page.goto(address)
    page.wait_for_function("document.body.dataset.ready === 'yes'")
    page.check("#thumbs")
    page.locator("#grid .tile").first.focus()
    page.keyboard.press("1")
    page.wait_for_function("document.getElementById('status').textContent.includes('saved')")
    page.wait_for_timeout(1500)
    page.screenshot(path=str(DOCS / "page.png"))
    page.close()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", default="6", help="epochs of the run in the pictures")
    return options


def main() -> None:
    """Make all pictures, from a new run or from one that is there."""
    epochs = parser().parse_args().epochs
    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        folder = Path(name)
        said = in_terminal([*FIT, str(folder / "digits"), "--epochs", epochs])
        terminal_picture(chromium, folder / "digits", epochs, said)
        in_terminal(["report", str(folder / "digits"), "-o", str(folder / "report")])
        report_picture(chromium, folder)
        with served(folder / "digits") as address:
            page_picture(chromium, address)


if __name__ == "__main__":
    main()
