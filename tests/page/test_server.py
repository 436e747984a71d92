"""What the server answers and what it refuses, without a browser."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import numpy as np
import pytest
from helpers.page import CHANGES, serve
from PIL import Image

pytest.importorskip("starlette", reason="needs semimetric[page]")
pytest.importorskip("httpx2", reason="needs the package httpx2")

from starlette.testclient import TestClient

from semimetric.core import origin
from semimetric.data.label_book import BookFile
from semimetric.serve.page.desk import Desk
from semimetric.serve.page.server import LARGEST_UPLOAD, build_app
from semimetric.serve.page.session import Page

ROOT = Path(__file__).parent.parent.parent
HERE = "http://127.0.0.1"
KEY = "a-key"


@pytest.fixture
def page(place: Path) -> Iterator[TestClient]:
    with TestClient(build_app(Desk(place / "run"), KEY), base_url=f"{HERE}/{KEY}", headers=CHANGES) as client:
        yield client


def test_the_run_and_its_points(page: TestClient, place: Path) -> None:
    facts = page.get("/api/run").json()
    assert facts["examples"] == 73
    assert facts["labelled"] == 12
    assert facts["classes"] == [
        {"name": name, "key": str(number + 1), "colour": number} for number, name in enumerate(["blue", "green", "red"])
    ]
    content = page.get("/api/points").content
    assert len(content) == 5 * 4 * 73
    x, y = np.frombuffer(content, "<f4")[: 2 * 73].reshape(2, 73)
    assert np.abs([x, y]).max() <= 1
    label = np.frombuffer(content, "<i4")[3 * 73 : 4 * 73]
    assert (label >= 0).sum() == 12
    assert not (place / "run.labels.sqlite").exists()


def test_labels_are_saved_at_once_and_taken_back(page: TestClient, place: Path) -> None:
    saved = page.post("/api/labels", json={"rows": [20, 21], "label": " odd <b> ", "who": "me"}).json()
    assert saved["labels"] == ["odd <b>"] * 2
    assert saved["classes"][-1] == {"name": "odd <b>", "key": "4", "colour": 3}
    with BookFile(place / "run.labels.sqlite") as book:
        assert [(entry.label, entry.person) for entry in book.entries()[-2:]] == [("odd <b>", "me")] * 2
    assert page.post("/api/undo", json={}).json()["done"] is False
    assert page.post("/api/undo", json={"who": 5}).status_code == 400
    back = page.post("/api/undo", json={"who": "me"}).json()
    assert (back["rows"], back["labels"]) == ([20, 21], [None, None])
    page.post("/api/labels", json={"rows": [20], "skip": True})
    with BookFile(place / "run.labels.sqlite") as book:
        assert book.entries()[-1].person == page.get("/api/run").json()["who"] == "someone at testclient"
    assert page.get("/api/run").json()["labelled"] == 12


def test_the_lists(page: TestClient) -> None:
    queue = page.get("/api/list/queue?n=5").json()
    assert len(queue) == 5
    assert all(entry["label"] is None for entry in queue)
    page.post("/api/labels", json={"rows": [queue[0]["row"]], "label": queue[0]["name"].split("/")[1].split()[0]})
    assert queue[0]["row"] not in [entry["row"] for entry in page.get("/api/list/queue?n=20").json()]
    pairs = page.get("/api/list/duplicates").json()
    assert {entry["name"] for entry in pairs[:2]} == {"unlabelled/blue ü 2.png", "unlabelled/copy.png"}
    assert len(page.get("/api/list/outliers").json()) == 73
    named = [entry["name"].split("/")[1] for entry in page.get("/api/list/outliers").json()]
    red = next(place for place, name in enumerate(named) if name.startswith("red"))
    row = page.get("/api/list/outliers").json()[red]["row"]
    page.post("/api/labels", json={"rows": [row], "label": "blue"})
    assert page.get("/api/list/errors").json()[0]["row"] == row
    assert page.get("/api/list/everything").status_code == 404


def test_an_uploaded_photograph_finds_its_copy(page: TestClient, planted: Path) -> None:
    content = (planted / "photos" / "unlabelled" / "copy.png").read_bytes()
    found = page.post("/api/search?n=3", content=content).json()
    assert {hit["name"] for hit in found[:2]} == {"unlabelled/blue ü 2.png", "unlabelled/copy.png"}
    assert found[0]["distance"] < 1e-4 < found[2]["distance"]
    near = page.get(f"/api/similar/{found[0]['row']}?n=2").json()
    assert {hit["row"] for hit in near} == {hit["row"] for hit in found[:2]}


def test_pictures_are_squares_of_the_photographs(page: TestClient) -> None:
    name = page.post("/api/examples", json={"rows": [0]}).json()[0]["name"]
    assert name.startswith("blue/")
    for size, address in ((96, "small"), (384, "large")):
        image = Image.open(io.BytesIO(page.get(f"/api/{address}/0").content))
        assert image.size == (size, size)
        assert np.asarray(image).mean((0, 1)).argmax() == 2


def test_a_selection_is_exported(page: TestClient) -> None:
    page.post("/api/labels", json={"rows": [30], "label": "red"})
    answer = page.post("/api/export", json={"rows": [30, 31]})
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert (rows[0]["label"], rows[0]["source"]) == ("red", "suggested")
    assert (rows[1]["label"], rows[1]["source"]) == ("", "")


REFUSED = {
    "a row that is not there": ("/api/labels", {"rows": [999], "label": "red"}),
    "a row that is no number": ("/api/labels", {"rows": ["../0"], "label": "red"}),
    "no rows": ("/api/labels", {"rows": [], "label": "red"}),
    "a label that is no text": ("/api/labels", {"rows": [0], "label": 7}),
    "control characters": ("/api/labels", {"rows": [0], "label": "a\x1b[31m"}),
    "a formula": ("/api/labels", {"rows": [0], "label": "=cmd()"}),
    "rows of an export": ("/api/export", {"rows": [-1]}),
    "judging that is neither": ("/api/learn", {"judge": "no"}),
    "no object": ("/api/labels", [1]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_requests_are_refused_with_a_sentence(what: str, page: TestClient) -> None:
    address, body = REFUSED[what]
    answer = page.post(address, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(".")
    assert page.get("/api/run").json()["labelled"] == 12


def test_uploads_that_are_too_large_or_no_pictures_are_refused(page: TestClient) -> None:
    assert page.post("/api/search", content=b"GIF89a, or not").status_code == 400
    assert page.post("/api/search", content=b"x" * (LARGEST_UPLOAD + 1)).status_code == 413
    bomb = io.BytesIO()
    Image.new("1", (20000, 20000)).save(bomb, "PNG")
    assert page.post("/api/search", content=bomb.getvalue()).status_code == 400
    assert page.get("/api/search").status_code == 405
    assert page.get("/api/run").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/../../etc/passwd",
        "/api/small/..%2f..%2f1",
        "/api/small/-1",
        "/api/small/999",
    ],
)
def test_no_path_leads_outside(path: str, page: TestClient) -> None:
    answer = page.get(path)
    assert answer.status_code in (400, 404)
    assert "import" not in answer.text


def test_other_sites_and_hosts_are_refused(page: TestClient) -> None:
    assert page.post("/api/undo", json={}, headers={"Origin": "http://evil.example"}).status_code == 403
    assert page.get("/api/run", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert page.get("/api/run", headers={"Host": "evil.example"}).status_code == 403
    assert page.get("/api/run", headers={"Host": "["}).status_code == 403
    assert page.post("/api/undo", json={}, headers={"Origin": "http://["}).status_code == 403
    assert page.post("/api/undo", json={}, headers={"Origin": HERE}).status_code == 200
    answer = page.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.7"])
def test_nothing_answers_without_the_key(host: str, place: Path) -> None:
    wrong = [
        "",
        "/",
        "/api/run",
        "/static/page.js",
        "/wrong/",
        "/wrong/api/run",
        f"/{KEY[:-1]}/",
        f"/{KEY}x/",
        f"//{KEY}/",
    ]
    wrong += [f"/?token={KEY}", f"/api/run?key={KEY}", f"/é/{KEY}/"]
    with TestClient(build_app(Desk(place / "run"), KEY, host), base_url=f"http://{host}") as client:
        answers = [client.get(f"http://{host}{path}", follow_redirects=False) for path in wrong]
        answers += [client.post("/api/undo", json={}, headers=CHANGES), client.options("/wrong/api/undo")]
        assert {(answer.status_code, answer.text) for answer in answers} == {(404, answers[0].text)}
        assert KEY not in str([answer.headers for answer in answers])
        assert client.get(f"/{KEY}/api/run", headers={"Cookie": "a=b"}).status_code == 200
        assert client.get(f"/{KEY}").url == f"http://{host}/{KEY}/"


def test_a_browser_is_given_nothing_that_it_sends_elsewhere(page: TestClient) -> None:
    for path in ("/", "/api/run", "/static/page.js", "/nothing", "/api/small/0"):
        answer = page.get(path)
        assert "set-cookie" not in answer.headers, path
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert KEY not in answer.text


@pytest.mark.parametrize("header", [{}, {"X-Semimetric": "a form"}, {"Content-Type": "text/plain"}])
def test_a_change_needs_the_header_of_the_page(header: dict[str, str], place: Path) -> None:
    with TestClient(build_app(Desk(place / "run"), KEY), base_url=f"{HERE}/{KEY}") as client:
        for address in ("labels", "undo", "learn", "export", "search", "examples"):
            answer = client.post(f"/api/{address}", json={"rows": [20], "label": "red"}, headers=header)
            assert answer.status_code == 403, address
        assert client.get("/api/run").json()["changes"] == 0
    assert not list(place.glob("run?*"))


def opens(address: str) -> bool:
    """Return True if a server sends the page."""
    try:
        with urlopen(address) as answer:
            return b"page.js" in answer.read()
    except HTTPError:
        return False


def test_the_key_outlives_the_server_until_a_new_one_is_asked_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keys, first_opens = [], []
    for options in ((), ("--host", "0.0.0.0"), (), ("--new-key",)):
        served = serve(place / "run", *options)
        keys.append(urlsplit(served.url).path)
        first_opens.append(opens(urljoin(served.url, keys[0])))
        assert opens(served.url)
        _, said = served.interrupt()
        served.kill()
        assert keys[-1] not in said
    first, open_to_others, again, new = keys
    assert first == again
    assert len({first, open_to_others, new}) == 3
    assert first_opens == [True, False, True, False]
    assert all(len(key) >= 2 + 22 for key in keys)  # 128 bits at least
    (file,) = (tmp_path / "state" / "semimetric").glob("page-*.key")
    assert file.stat().st_mode & 0o777 == 0o600


def test_each_run_has_a_key_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, other = origin.page_key(Path("one")), origin.page_key(Path("other"))
    assert len({one, other, origin.page_key(Path("one"), new=True), ""}) == 4
    assert origin.page_key(Path("other")) == other
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert not origin.page_key(Path("one"))


def test_two_browsers_lose_no_label(page: TestClient, place: Path) -> None:
    for number in range(20):
        page.post(
            "/api/labels",
            json={"rows": [20 + number], "label": "red" if number % 2 else "blue", "who": str(number % 2)},
        )
    page.__exit__(None, None, None)
    labels = Desk(place / "run").book.labels[20:40]
    assert labels == ["blue", "red"] * 10


def test_a_label_is_saved_quickly(page: TestClient) -> None:
    seconds = []
    for row in range(20, 50):
        began = time.process_time()
        page.post("/api/labels", json={"rows": [row], "label": "red"})
        seconds.append(time.process_time() - began)
    assert statistics.median(seconds) < 0.05  # benchmarks/page.py measures it on an idle machine


def test_the_bundle_was_built_from_the_sources() -> None:
    digest = sha256()
    for path in sorted((ROOT / "web" / "src").iterdir(), key=lambda path: path.name):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    digest.update((ROOT / "web" / "package.json").read_bytes())
    static = ROOT / "semimetric" / "serve" / "page" / "static"
    first = re.match(r"/\* sources (\w+);", (static / "page.js").read_text())
    assert first is not None
    assert first[1] == digest.hexdigest(), "run: cd web && npm install && npm run build"
    assert "regl-scatterplot 1.16.0 (MIT)" in (static / "LICENSES.txt").read_text()


def test_requests_that_are_no_rows_are_refused_in_words(page: TestClient) -> None:
    for rows in (5, {"a": 1}, None, "ab", [True]):
        for address in ("/api/examples", "/api/labels", "/api/export"):
            answer = page.post(address, json={"rows": rows, "label": "red"})
            assert answer.status_code == 400, (address, rows)
            assert "rows must be" in answer.json()["error"]
    nested = page.post("/api/labels", content=b"[" * 200_000)
    assert nested.status_code == 400


def test_a_browser_keeps_no_picture_for_the_next_run_on_this_port(page: TestClient) -> None:
    for size in ("small", "large"):
        assert page.get(f"/api/{size}/0").headers["cache-control"] == "no-store"


def test_whatever_goes_wrong_while_learning_is_told_and_the_page_goes_on(place: Path, tmp_path: Path) -> None:
    page = Page(Desk(place / "run"))
    heard: asyncio.Queue[str] = asyncio.Queue()
    page.listeners.add(heard)
    (tmp_path / "out").write_text("no folder")

    async def learn_and_be_killed() -> None:
        await page.learn(tmp_path / "out")
        task = asyncio.create_task(page.learn(tmp_path / "again"))
        while page.process is None:
            await asyncio.sleep(0.01)
        (tmp_path / "again" / "config.json").write_text("{}")  # as the process would, a little later
        page.process.kill()
        await task

    before = page.desk
    with ThreadPoolExecutor(1) as thread:  # this one may have a loop already, that of the browser
        thread.submit(asyncio.run, learn_and_be_killed()).result()
    told = [json.loads(heard.get_nowait().partition("data: ")[2])["why"] for _ in range(heard.qsize())]
    assert "out" in told[0]
    assert told[1].startswith("the process that learned was ended with code -9")
    assert page.desk is before
    assert page.process is None
    assert (tmp_path / "out").read_text() == "no folder"  # it is not the page's
    assert not (tmp_path / "again").exists()
    before.book.close()


def test_a_page_that_was_opened_on_other_examples_saves_no_label(page: TestClient) -> None:
    key = page.get("api/run").json()["key"]
    body = {"rows": [20], "label": "red"}
    assert page.post("api/labels", json=body | {"key": "of an earlier fit"}).status_code == 410
    assert page.get("api/run").json()["labelled"] == 12
    assert page.post("api/labels", json=body | {"key": key}).status_code == 200


def test_a_class_that_another_program_renames_breaks_no_answer(page: TestClient, place: Path) -> None:
    page.post("api/labels", json={"rows": [20], "label": "red"})
    with BookFile(place / "run.labels.sqlite") as other, other.step("you") as step:
        step.add("rename class", of=step.class_of("red"), value="crimson")
    for address in ("api/run", "api/points", "api/list/queue", "api/list/errors"):
        assert page.get(address).status_code == 200
    assert page.post("api/examples", json={"rows": list(range(73))}).status_code == 200
