"""The page and the report in a real browser."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.command import semimetric
from helpers.page import Served

Opener = Callable[..., Any]
READY = "document.body.dataset.ready === 'yes'"
AXE = Path(__file__).parent.parent.parent / "web" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture
def open_page(browser: Any) -> Iterator[Opener]:
    """Open a page; when the test ends, nothing may have been wrong in its console."""
    wrong: list[str] = []
    pages = []

    def opener(url: str, width: int = 1280, ready: str = READY) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.set_default_timeout(30_000)
        page.goto(url)
        page.wait_for_function(ready)
        pages.append(page)
        return page

    yield opener
    for page in pages:
        page.close()
    assert not wrong


def saved(served: Served) -> list[tuple[str, str]]:
    """Names and labels that the page wrote."""
    lines = (served.place / "run.labels.csv").read_text().splitlines()
    return [(row["path"], row["label"]) for row in csv.DictReader(lines) if row["change"] != "0"]


def wait_for(page: Any, text: str) -> None:
    page.wait_for_function(f"document.getElementById('status').textContent.includes({json.dumps(text)})")


def labelled(page: Any) -> int:
    return int(page.inner_text("#count").split()[0])


def wait_for_count(page: Any, count: int) -> None:
    page.wait_for_function(f"document.getElementById('count').textContent.startsWith('{count} ')")


def test_five_labels_by_keyboard_survive_a_kill(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    before = labelled(page)
    shown = page.eval_on_selector_all("#grid .tile", "tiles => tiles.map(tile => tile.title)")
    page.locator("body").press("ArrowRight")
    for number, key in enumerate("12312", 1):
        page.keyboard.press(key)
        wait_for_count(page, before + number)
    page.close()
    served.restart()
    names = {"1": "blue", "2": "green", "3": "red"}
    assert saved(served)[-5:] == [(name, names[key]) for name, key in zip(shown[1:6], "12312", strict=True)]
    page = open_page(served.url)
    assert labelled(page) == before + 5
    page.keyboard.press("u")
    wait_for(page, "Taken back: 1 label")
    assert labelled(page) == before + 4
    assert saved(served)[-1] == (shown[5], "")


def lasso(page: Any) -> None:
    """Draw around the whole map."""
    page.click("#lasso")
    box = page.locator("#map").bounding_box()
    left, top = box["x"] + 3, box["y"] + 3
    right, bottom = left + box["width"] - 6, top + box["height"] - 6
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top)):
        page.mouse.move(x, y, steps=6)
        page.wait_for_timeout(30)
    page.mouse.up()


def test_a_lasso_labels_all_at_once_and_one_undo_takes_them_back(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    before = labelled(page)
    other = open_page(served.url, 390)
    lasso(page)
    page.wait_for_function("document.getElementById('hint').textContent.startsWith('Keys label all')")
    count = int(page.inner_text("#selected"))
    assert count >= 50
    assert re.search(r"\d+ / \d+", page.inner_text("#legend"))
    page.fill("#new-name", "<i>new</i>")
    page.press("#new-name", "Enter")
    wait_for(page, f"{count} labels saved: <i>new</i>")
    assert [label for _, label in saved(served)[-count:]] == ["<i>new</i>"] * count
    assert page.locator("#classes i ~ i").count() == 0
    assert page.locator("#classes span", has_text="<i>new</i>").count() == 1
    other.wait_for_function("document.getElementById('classes').textContent.includes('<i>new</i>')")
    page.click("#undo")
    wait_for(page, f"Taken back: {count} labels")
    wait_for_count(other, before)
    other.locator("#grid .tile").first.focus()
    other.keyboard.press("2")
    wait_for_count(page, before + 1)
    assert other.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_search_and_learning_again(served: Served, planted: Path, open_page: Opener) -> None:
    page = open_page(served.url)
    known = labelled(page)
    page.set_input_files("#file", str(planted / "photos" / "unlabelled" / "copy.png"))
    page.wait_for_function("document.querySelector('#grid .tile small')?.textContent.startsWith('distance')")
    found = page.eval_on_selector_all("#grid .tile", "tiles => tiles.slice(0, 2).map(tile => tile.title)")
    assert set(found) == {"unlabelled/blue ü 2.png", "unlabelled/copy.png"}
    page.click("[data-list=queue]")
    page.wait_for_function("document.querySelector('#grid .tile small')?.textContent.startsWith('stands')")
    keys = {"blue": "1", "green": "2", "red": "3"}
    for number in range(1, 4):
        tile = page.locator("#grid .tile[aria-current=true]")
        name = tile.get_attribute("title").split("/")[1].split()[0]
        tile.press(keys.get(name, "1"))
        wait_for_count(page, known + number)
    page.click("#learn")
    page.wait_for_selector("#outcome:not([hidden])", timeout=300_000)
    cells = page.eval_on_selector_all("#outcome td", "cells => cells.map(cell => cell.textContent)")
    before, after = (float(cell.split()[0]) for cell in cells[1:3])
    assert after >= before
    assert (served.place / "run-again-1" / "result.json").is_file()
    assert labelled(page) == known + 3
    kept = {path.name: path.read_bytes() for path in (served.place / "run").iterdir()}
    assert kept == {path.name: path.read_bytes() for path in (planted / "run").iterdir()}


def test_hovering_a_point_shows_its_picture(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    page.uncheck("#naming")
    page.check("#thumbs")
    tile = page.locator("#names img").first
    box = tile.bounding_box()
    page.mouse.move(box["x"] - 40, box["y"] - 40)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
    page.wait_for_selector("#hover:not([hidden])")
    row = page.get_attribute("#hover", "data-row")
    assert page.get_attribute("#hover img", "src") == f"api/small/{row}"


def test_the_report_in_a_browser(planted: Path, tmp_path: Path, open_page: Opener) -> None:
    pytest.importorskip("matplotlib", reason="needs semimetric[figures]")
    made = semimetric("report", planted / "run", "-o", tmp_path / "report", "--json").json()
    page = open_page(f"file://{made['report']}", ready="document.querySelectorAll('#map-legend button').length > 1")
    data = json.loads(page.text_content("#data"))["map"]
    page.focus("#map-canvas")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#hover:not([hidden])")
    row = int(page.get_attribute("#hover", "data-row"))
    assert data["names"][data["rows"].index(row)] in page.inner_text("#hover")
    before = page.inner_text("#map-count")
    page.locator("#map-legend button").first.click()
    assert page.inner_text("#map-count") != before
    page.select_option("#map-colour", "confidence")
    assert page.locator("#map-legend button").count() == 5
    check_accessible(page)


def check_accessible(page: Any) -> None:
    """Nothing that axe-core calls serious or critical."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; run npm install in web")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")
    bad = [
        (rule["id"], rule["nodes"][0]["html"])
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
    ]
    assert not bad


def test_nothing_serious_keeps_people_out(served: Served, open_page: Opener) -> None:
    check_accessible(open_page(served.url))


def test_ctrl_c_ends_the_server_although_a_browser_listens(served: Served, open_page: Opener, browser: Any) -> None:
    page = browser.new_page()
    page.goto(served.url)
    page.wait_for_function(READY)
    _, said = served.interrupt()
    page.close()
    assert "Traceback" not in said
    assert "ERROR" not in said
    served.restart()
    assert open_page(served.url).inner_text("#count").endswith("of 73 labelled")
