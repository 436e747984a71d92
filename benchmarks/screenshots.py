"""Screenshots for the documentation: a report, the page and the terminal. Run: python benchmarks/screenshots.py.

Needs the extras figures and page, a Chromium, and the package playwright. Writes docs/report.png, docs/page.png and
docs/terminal.png.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import re
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


def screen(said: str) -> str:
    """What stands on the screen after all that was written: lines may be cleared, and written again from below."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[[\d;?]*[A-Za-z]|\r|\n)", said):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\r" or part.endswith("[2K"):
            lines[row] = "" if part != "\r" else lines[row]
        elif up := re.fullmatch(r"\x1b\[(\d*)A", part):
            row -= int(up[1] or 1)
        elif not part.startswith("\x1b") or part.endswith("m"):
            lines[row] += part
    return "\n".join(line for line in lines if line.strip())


def terminal_picture(chromium: Any, run: Path, epochs: str, said: str) -> None:
    """A fit in its fifth epoch, and its end."""
    words = " ".join([*FIT, "runs/digits", "--epochs", epochs])
    windows, fifth = [], said[: said.rindex("\r", 0, said.index("epoch 5 of"))]
    for title, shown in (("in the fifth epoch", fifth), ("at the end", said)):
        console = Console(record=True, width=100, file=io.StringIO())
        console.print(Text(f"$ semimetric {words}"))
        console.print(Text.from_ansi(screen(shown).replace(str(run), "runs/digits")))
        windows.append(console.export_svg(title=title))
    page = chromium.new_page(viewport={"width": 1100, "height": 900})
    page.set_content(f'<body style="margin:0"><div style="width:1100px">{"".join(windows)}</div></body>')
    page.locator("div").screenshot(path=str(DOCS / "terminal.png"))
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
    page.check("#dense")
    page.locator("#grid .tile").first.focus()
    page.keyboard.press("8")
    page.wait_for_function("document.getElementById('status').textContent.includes('saved')")
    page.wait_for_timeout(1500)
    page.screenshot(path=str(DOCS / "page.png"))
    page.close()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", default="8", help="epochs of the run in the pictures, more than 5")
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
