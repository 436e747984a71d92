"""A headless browser and a served page, for measurements and screenshots."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
"""Drawing in software, as on a machine without a graphics card."""


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium of this machine."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise SystemExit("there is no Chromium on this machine; Debian has the package chromium")
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


@contextmanager
def served(run: Path) -> Iterator[str]:
    """The address of the page of a run."""
    command = [sys.executable, "-m", "semimetric", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"http://\S+", line):
                yield found[0]
                return
        raise SystemExit(said)
    finally:
        process.terminate()
        process.wait()
