"""One run of generated photographs, one server and one browser for all tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command import semimetric
from helpers.own_photos import write_folder
from helpers.page import Served, serve

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs of three colours, one of them twice, and a run on them."""
    pytest.importorskip("starlette", reason="needs semimetric[page]")
    pytest.importorskip("uvicorn", reason="needs semimetric[page]")
    place = tmp_path_factory.mktemp("page")
    photos = write_folder(place / "photos", labelled=4, unlabelled=60)
    shutil.copy(photos / "unlabelled" / "blue ü 2.png", photos / "unlabelled" / "copy.png")
    done = semimetric("fit", photos, "-o", place / "run", "--epochs", 2, "--json")
    assert done.code == 0, done.err
    return place


@pytest.fixture
def place(planted: Path, tmp_path: Path) -> Path:
    """A copy of the run, for a test that labels."""
    shutil.copytree(planted / "run", tmp_path / "run")
    return tmp_path


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Headless Chromium, drawing in software."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine; Debian has the package chromium")
    flags = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served(planted: Path, browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a copy of the run, served by the command."""
    place = tmp_path_factory.mktemp("served")
    shutil.copytree(planted / "run", place / "run")
    served = serve(place / "run")
    yield served
    served.kill()
