"""Reports of runs: what they show, that they ask for nothing else, and what is refused."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command import semimetric
from helpers.own_photos import COLOURS, write_folder, write_photo
from helpers.sealed import reseal
from PIL import Image

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.reporting.facts import Labelled, read_facts
from semimetric.reporting.html import Sheet
from semimetric.reporting.plots import (
    confusion_shares,
    plot_calibration,
    plot_confusion,
    plot_curves,
    plot_map,
    plot_spectrum,
)

pytest.importorskip("matplotlib", reason="needs semimetric[figures]")

EVIL = 'x<img src=q onerror=alert(1)>"&'
FIGURES = ["calibration", "confidence", "confusion", "curves", "map", "retrieval", "spectrum"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs with a class named like HTML, a wrong label and a copy; and a run on them."""
    place = tmp_path_factory.mktemp("reports")
    photos = write_folder(place / "photos", labelled=5, unlabelled=12)
    for number in range(4):
        write_photo(photos / EVIL / f"{number}.png", (200, 200, 20), 50 + number)
    shutil.copy(photos / "unlabelled" / "red ü 0.png", photos / "unlabelled" / "copy.png")
    done = semimetric("fit", photos, "-o", place / "run", "--epochs", 2, "--json")
    assert done.code == 0, done.err
    return place


@pytest.fixture(scope="module")
def report(place: Path) -> dict[str, object]:
    return semimetric("report", place / "run", "-o", place / "report", "--json").json()


class Links(HTMLParser):
    """Collects what a page would fetch, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]


def data_of(page: str) -> dict[str, object]:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_a_report_is_one_file_that_fetches_nothing(report: dict[str, object]) -> None:
    page = Path(str(report["report"])).read_text()
    links = Links()
    links.feed(page)
    assert all(link.startswith(("#", "data:")) for link in links.fetched), links.fetched
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", page).replace("http-equiv", "")
    assert "img" not in links.tags
    assert "Content-Security-Policy" in page
    assert "x&lt;img src=q onerror=alert(1)&gt;" in page
    found = sorted({Path(path).stem for path in report["figures"]})
    assert found == FIGURES
    assert {Path(path).suffix for path in report["figures"]} == {".png", ".svg"}
    (drawn,) = (Path(path).read_text() for path in report["figures"] if path.endswith("map.svg"))
    assert "Colours: predicted class." in drawn
    assert "unlabelled" not in drawn


def test_hovering_shows_the_picture_of_the_point(place: Path, report: dict[str, object]) -> None:
    data = data_of(Path(str(report["report"])).read_text())
    sheet = Image.open(io.BytesIO(base64.b64decode(data["sheet"]["url"].partition(",")[2])))
    side, across = data["sheet"]["side"], data["sheet"]["across"]
    assert len(data["map"]["names"]) == len(sm.load(place / "run").embedding_)
    for name, tile in zip(data["map"]["names"], data["map"]["tiles"], strict=True):
        left, top = tile % across * side, tile // across * side
        colour = np.asarray(sheet.crop((left + 8, top + 8, left + side - 8, top + side - 8))).mean((0, 1))
        wanted = np.asarray(Image.open(place / "photos" / name).convert("RGB")).mean((0, 1))
        assert np.abs(colour - wanted).max() < 12, name


def test_a_report_tells_no_folder_of_this_machine(place: Path, report: dict[str, object]) -> None:
    assert str(place) not in Path(str(report["report"])).read_text()
    lost = dataclasses.replace(read_facts(place / "run").pictures, missing=f"no {place / 'photos'}")
    facts = dataclasses.replace(read_facts(place / "run"), pictures=lost)
    assert facts.named_only(lost.missing) == "no photos"
    assert facts.named_only("/weights/net.pt") == "net.pt"
    assert facts.named_only(0.5) == 0.5


def test_curves_stand_at_the_epoch_after_which_they_were_measured() -> None:
    lines = [{"epoch": 1, "held_back_accuracy": 0.5, "training_loss": 2.0}, {"epoch": 2, "training_loss": 1.0}]
    drawn = {axes.get_ylabel(): axes.lines[0].get_xdata().tolist() for axes in plot_curves({"run": lines}).axes}
    assert drawn == {"Held-out accuracy": [0], "Training loss": [1, 2]}


def test_the_copy_is_listed_as_a_near_duplicate(place: Path, report: dict[str, object]) -> None:
    facts = read_facts(place / "run")
    pairs = [{facts.names[row] for row in pair} for pair in facts.duplicates.rows.tolist()]
    assert {"unlabelled/copy.png", "unlabelled/red ü 0.png"} in pairs
    assert facts.duplicates.distances[0] == 0
    assert "unlabelled/copy.png" in Path(str(report["report"])).read_text()


def test_a_report_on_unseen_data_judges_by_it(place: Path) -> None:
    fresh = place / "fresh"
    for number, (name, colour) in enumerate(COLOURS.items()):
        write_photo(fresh / name / "a.png", colour, 900 + number)
    write_photo(fresh / "violet" / "a.png", (150, 20, 200), 990)
    facts = read_facts(place / "run", Labelled(fresh))
    assert facts.judgement is not None
    assert facts.judgement.classes[-1] == "violet"
    assert facts.judgement.about.startswith("4 labelled examples of fresh")
    predicted = sm.load(place / "run").predict(sorted(fresh.rglob("*.png")))
    assert [facts.judgement.classes[n] for n in facts.judgement.predicted] == predicted.tolist()
    printed = semimetric("evaluate", place / "run", fresh, "--device", "cpu", "--json").json()
    assert printed["scores"] == facts.evaluation.scores
    assert facts.judgement.accuracy == printed["scores"]["run"]["accuracy"]
    assert semimetric("report", place / "run", fresh, "-o", place / "judged").code == 0
    said = re.sub(r"<[^>]+>", " ", (place / "judged" / "report.html").read_text())
    for line in semimetric("evaluate", place / "run", fresh).out.splitlines()[1:7]:
        assert " ".join(line.split()) in " ".join(said.split())
    assert "need DATA" in semimetric("report", place / "run", "--label-column", "y").sentence()


def test_what_cannot_be_reported_is_refused(place: Path, report: dict[str, object]) -> None:
    assert "exists" in semimetric("report", place / "run", "-o", place / "report").sentence()
    (place / "run-report").mkdir()
    (place / "run-report" / "report.html").touch()
    there = semimetric("report", place / "run").sentence()
    assert "run-report/report.html' exists" in there
    assert "is the run itself" in semimetric("report", place / "run", "-o", place / "run").sentence()
    assert "is a file" in semimetric("report", place / "run", "-o", place / "run" / "config.json").sentence()
    assert "must be a folder" in semimetric("report", place / "run", "-o", place / "mine.HTML").sentence()
    assert "there is no folder" in semimetric("report", place / "run", "-o", place / "no" / "where").sentence()
    assert "is not a run" in semimetric("report", place / "photos").sentence()
    assert "two runs or more" in semimetric("compare", place / "run").sentence()


def test_runs_side_by_side(place: Path) -> None:
    done = semimetric("fit", place / "photos", "-o", place / "other", "--epochs", 1, "--seed", 3, "--json")
    assert done.code == 0, done.err
    made = semimetric("compare", place / "run", place / "other", "-o", place / "both", "--json").json()
    page = Path(made["report"]).read_text()
    for row in ("run: seed", "training: epochs"):
        assert f'<th scope="row">{row}</th>' in page
    assert "training: lr" not in page
    assert "Predicted correctly, run" in page  # by which examples
    queries = read_facts(place / "run").queries
    assert page.count("<h3>") == len({query.row for query in queries})
    assert page.count('class="row"') == 2 * page.count("<h3>")
    assert {Path(path).name for path in made["figures"]} == {"curves.png", "curves.svg"}
    again = semimetric("compare", place / "run", place / "other", "-o", place / "both")
    assert "both/compare.html' exists" in again.sentence()


def test_a_table_shows_values_in_place_of_pictures(tmp_path: Path, make_clusters) -> None:
    points, classes = make_clusters(0, 40, 3, 2)
    lines = ["id,a,b,c,label"]
    for row, values in enumerate(points.tolist()):
        lines.append(f"r{row},{values[0]},{values[1]},{values[2]},{'xy'[classes[row]] if row < 12 else ''}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert semimetric("fit", tmp_path / "t.csv", "-o", tmp_path / "run", "--epochs", 1, "--json").code == 0
    facts = read_facts(tmp_path / "run")
    assert facts.names[5] == "r5"
    shown = Sheet(facts.pictures, facts.names).tile(5)
    assert f"b {points[5, 1]:.4g}<br>" in shown


def test_a_run_of_others_shows_photographs_of_a_folder_that_the_user_names(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    listed = json.loads((tmp_path / "run" / "examples.json").read_text())
    listed["names"][:2] = [str(place / "photos" / listed["names"][0]), f"../{place.name}/photos/{listed['names'][1]}"]
    (tmp_path / "run" / "examples.json").write_text(json.dumps(listed))
    reseal(tmp_path / "run")
    facts = read_facts(tmp_path / "run")
    assert "not made by you on this machine" in facts.pictures.missing
    assert "--source PATH" in facts.pictures.missing
    assert facts.pictures.tile(2, 8) is None
    (tmp_path / "mine").symlink_to(place / "photos")
    shown = read_facts(tmp_path / "run", source=tmp_path / "mine").pictures
    assert [shown.tile(row, 8) is not None for row in range(3)] == [False, False, True]
    assert read_facts(place / "run", source=tmp_path / "mine").pictures.tile(0, 8) is not None
    with pytest.raises(InputError, match=r"--source .* is not there"):
        read_facts(place / "run", source=tmp_path / "nowhere")


def test_a_run_whose_photographs_are_gone_still_has_a_report(place: Path, tmp_path: Path) -> None:
    shown = read_facts(place / "run", source=write_folder(tmp_path / "others", 1, 1) / "unlabelled").pictures
    assert shown.tile(0, 8) is None


def test_figures_return_what_they_are_given() -> None:
    truth, named = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 1, 1, 1, 1, 0])
    shares, shown, counts = confusion_shares(truth, named, 4)
    assert shown == [0, 1, 2]
    assert counts == [2, 3, 1, 0]
    np.testing.assert_allclose(shares, [[50, 50, 0], [0, 100, 0], [100, 0, 0]])
    assert len(plot_confusion(truth, named, "abcd").axes) == 1
    assert len(plot_calibration(truth, named, torch.full((6,), 0.7)).axes) == 2
    assert len(plot_spectrum(torch.randn(20, 5)).axes) == 2
    many = plot_map(torch.rand(60, 2), torch.arange(60) % 30 - 1, [f"c{n}" for n in range(29)])
    assert [entry.get_text() for entry in many.legends[0].get_texts()][-2:] == ["21 other classes", "unlabelled"]


def test_a_fitted_estimator_shows_a_map_beside_the_diagram_of_scikit_learn(make_clusters) -> None:
    points = make_clusters(0, 30, 4, 2)[0]
    model = sm.SemiMetric(epochs=2, random_state=0)
    assert "<svg width" not in model._repr_html_()
    model.fit(points.numpy(), ["<b>", "c"] * 15)
    shown = model._repr_html_()
    assert "sk-top-container" in shown
    assert shown.count("<circle") == 30
    assert "&lt;b&gt;" in shown
    assert "<circle" in model._repr_mimebundle_()["text/html"]
