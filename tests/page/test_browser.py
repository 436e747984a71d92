"""The page and the report in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import dist
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import Request, urlopen

import pytest
from helpers.command import semimetric
from helpers.page import Served, serve

from semimetric.data.label_book import BookFile, Entry

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


def lines(served: Served) -> list[Entry]:
    """What people have said of examples, in the order in which they did."""
    with BookFile(served.place / "run.labels.sqlite") as book:
        return [entry for entry in book.entries() if entry.person]


def saved(served: Served) -> list[tuple[str, str | None]]:
    """Names and labels that the page wrote."""
    return [(entry.example, entry.label) for entry in lines(served)]


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
    page.fill("#who", "Ada <b>")
    page.locator("#who").press("Escape")
    page.keyboard.type("12312")
    wait_for_count(page, before + 5)
    page.close()
    served.restart()
    names = {"1": "blue", "2": "green", "3": "red"}
    assert saved(served)[-5:] == [(name, names[key]) for name, key in zip(shown[1:6], "12312", strict=True)]
    assert [entry.person for entry in lines(served)[-5:]] == ["Ada <b>"] * 5
    page = open_page(served.url)
    assert labelled(page) == before + 5
    page.keyboard.press("u")
    wait_for(page, "There is nothing of yours to take back")
    page.fill("#who", "Ada <b>")
    page.locator("#who").press("Escape")
    page.keyboard.press("u")
    wait_for(page, "Taken back: 1 label")
    assert labelled(page) == before + 4
    assert shown[5] not in [name for name, _ in saved(served)]


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
    new = max(1, 6 - (known - 12))  # the run has 12
    for number in range(1, new + 1):
        tile = page.locator("#grid .tile[aria-current=true]")
        name = tile.get_attribute("title").split("/")[1].split()[0]
        tile.press(keys.get(name, "1"))
        wait_for_count(page, known + number)
    page.click("#learn")
    page.wait_for_selector("#outcome:not([hidden])", timeout=300_000)
    cells = page.eval_on_selector_all("#outcome td", "cells => cells.map(cell => cell.textContent)")
    assert cells[0] == f"right on {known + new - 12} new labels"
    before, after = (float(cell.split()[0]) for cell in cells[1:3])
    assert after >= before
    page.locator("#outcome button").click()
    page.wait_for_function("document.querySelector('[data-list=selection]').ariaSelected === 'true'")
    assert (served.place / "run-again-1" / "result.json").is_file()
    assert labelled(page) == known + new
    kept = {path.name: path.read_bytes() for path in (served.place / "run").iterdir()}
    assert kept == {path.name: path.read_bytes() for path in (planted / "run").iterdir()}


POINTS = """async () => {
  const count = (await (await fetch("api/run")).json()).examples;
  const columns = new Float32Array(await (await fetch("api/points")).arrayBuffer());
  const box = document.getElementById("map").getBoundingClientRect();
  const place = row => [box.left + box.width / 2 + columns[row] * box.height / 2,
                        box.top + box.height / 2 - columns[count + row] * box.height / 2];
  return [...Array(count).keys()].map(place);
}"""
"""Where the examples are on the screen, before the map is moved."""


@pytest.mark.parametrize("drawing", ["", "?webgl"])
def test_hovering_a_point_shows_its_picture(drawing: str, served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    page.goto(page.url + drawing)
    page.wait_for_function(READY)
    points = page.evaluate(POINTS)
    alone = [min(dist(point, other) for k, other in enumerate(points) if k != row) for row, point in enumerate(points)]
    row = alone.index(max(alone))
    page.mouse.move(points[row][0] - 40, points[row][1])
    page.mouse.move(*points[row], steps=4)
    shown = page.wait_for_selector("#hover:not([hidden])").get_attribute("data-row")
    assert dist(points[int(shown)], points[row]) < 8  # several may lie at one place
    assert page.get_attribute("#hover img", "src") == f"api/small/{shown}"


def test_contours_names_and_pictures_can_be_switched(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    named = page.inner_text("#clusters")
    assert {"blue", "green", "red"} >= {*named.removeprefix("Clusters: ").rstrip(".").split(", ")}
    page.wait_for_timeout(100)
    shown = [page.locator("#map").screenshot()]
    for switch in ("#dense", "#thumbs", "#naming"):
        page.locator(switch).press("Space")
        page.wait_for_timeout(300)
        shown.append(page.locator("#map").screenshot())
    page.focus("#map")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(100)
    shown.append(page.locator("#map").screenshot())
    assert len({*shown}) == 5
    assert page.inner_text("#clusters") == ""
    assert int(page.get_attribute("#map", "data-pictures")) >= 3


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
    """Nothing that axe-core calls serious or critical: wide and narrow, light and dark."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; run npm install in web")
    page.evaluate(AXE.read_text())
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            found = page.evaluate("axe.run()")
            bad = [
                (rule["id"], rule["nodes"][0]["html"])
                for rule in found["violations"]
                if rule["impact"] in ("serious", "critical")
            ]
            assert not bad, (width, scheme)
            assert len(found["passes"]) > 10


def test_nothing_serious_keeps_people_out(served: Served, open_page: Opener) -> None:
    check_accessible(open_page(served.url))


FORM = '<form method="post" action="{}" enctype="text/plain"><input name="a" value="b"><button>Win</button></form>'


class Stranger(ThreadingHTTPServer):
    """The server of another user on this machine; it keeps the headers of all that it is asked for."""

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.target, self.url, self.heard = target, f"http://127.0.0.1:{self.server_port}/", list[dict[str, str]]()

    def __enter__(self) -> Stranger:
        Thread(target=self.serve_forever).start()
        return self

    def __exit__(self, *ended: object) -> None:
        self.shutdown()
        self.server_close()


class Answer(BaseHTTPRequestHandler):
    """A page with a form for the stranger's target."""

    server: Stranger

    def do_GET(self) -> None:
        self.server.heard.append(dict(self.headers))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(FORM.format(self.server.target).encode())

    def log_message(self, *message: object) -> None:
        pass


def test_the_server_of_another_user_gets_nothing_that_opens_the_page(served: Served, browser: Any) -> None:
    home = urljoin(served.url, "/")
    context = browser.new_context()  # one person's tabs share their cookies
    page = context.new_page()
    page.goto(served.url)
    page.wait_for_function(READY)
    with Stranger(urljoin(served.url, "api/labels")) as stranger:
        with page.expect_navigation():
            page.evaluate(f"location.href = {json.dumps(stranger.url)}")
        page.goto(stranger.url)
        with page.expect_response(stranger.target) as answered:  # even for one who knew the key
            page.click("button")
        assert answered.value.status == 403
    context.close()
    assert len(stranger.heard) >= 2
    for headers in stranger.heard:
        known = {name: value for name, value in headers.items() if name in ("Cookie", "Referer")}
        sent = {name: value for name, value in known.items() if not value.startswith(stranger.url)}
        for address in (home, home + "api/run", sent.get("Referer", home)):
            with pytest.raises(HTTPError, match=r"40[34]"):
                urlopen(Request(address, headers=sent))
        assert not sent


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


def test_labels_are_kept_in_the_window_while_they_cannot_be_saved(planted: Path, browser: Any, tmp_path: Path) -> None:
    """The file is moved while the page is open; each choice is tried, and none loses a label."""
    shutil.copytree(planted / "run", tmp_path / "run")
    served, book = serve(tmp_path / "run"), tmp_path / "run.labels.sqlite"
    page = browser.new_page()
    try:
        page.set_default_timeout(30_000)
        page.goto(served.url)
        page.wait_for_function(READY)
        shown = page.eval_on_selector_all("#grid .tile", "tiles => tiles.map(tile => tile.title)")
        page.keyboard.press("1")
        wait_for(page, "1 label saved: blue")
        book.rename(tmp_path / "elsewhere")
        page.keyboard.type("23")
        page.wait_for_selector("#held:not([hidden])")
        page.wait_for_function(
            "document.getElementById('held').textContent.includes('2 labels are kept in this window')"
        )
        assert "run.labels.sqlite was moved or removed" in page.inner_text("#held")
        page.get_by_text("Try again").click()
        page.wait_for_selector("#held:not([hidden])")
        page.get_by_text("Write the file again").click()
        wait_for(page, "1 label saved: red")
        assert page.locator("#held").is_hidden()
        assert saved(served) == [*zip(shown, ("blue", "green", "red"), strict=False)]
        (tmp_path / "junk").write_text("junk")
        (tmp_path / "junk").replace(book)
        page.keyboard.press("1")
        page.wait_for_selector("#held:not([hidden])")
        page.get_by_text("Use the file that is there now").click()
        page.wait_for_function("document.getElementById('held').textContent.includes('not a label book')")
        assert book.read_text() == "junk"
        shutil.copy(tmp_path / "elsewhere", book)  # the copy from before, with one label
        page.get_by_text("Try again").click()
        page.wait_for_function("document.getElementById('held').textContent.includes('was replaced')")
        page.get_by_text("Use the file that is there now").click()
        wait_for(page, "1 label saved: blue")
        assert saved(served) == [(shown[0], "blue"), (shown[3], "blue")]
        served.process.kill()
        served.process.wait()
        page.keyboard.type("12")
        page.wait_for_function("document.getElementById('held').textContent.includes('does not answer')")
        assert page.locator("#held .count").inner_text() == "2 labels are kept in this window."
        assert page.inner_text("#status") == "Not saved yet: 2 labels"
        page.get_by_text("Discard").click()
        assert page.locator("#held").is_hidden()
    finally:
        page.close()
        served.kill()
