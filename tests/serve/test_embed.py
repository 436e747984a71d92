from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command import semimetric
from helpers.own_photos import COLOURS, write_folder, write_photo
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.core.errors import InputError, RunError
from semimetric.estimators.runs import estimator_of
from semimetric.model.folder import LoadedRun, load_run
from semimetric.serve import csv_file
from semimetric.serve import embed as bulk
from semimetric.serve.embed import embed_to, new_examples
from semimetric.serve.predict import predict_collection, write_predictions

pytestmark = pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs and a run of them; vectors and two runs of them."""
    folder = tmp_path_factory.mktemp("home")
    write_folder(folder / "photos", labelled=4, unlabelled=11)
    quick = ["--encoder", "small-cnn", "--side", 16, "--epochs", 1, "--passes", 1]
    assert semimetric("fit", folder / "photos", "--out", folder / "run", *quick).code == 0
    features, classes = load_wine(return_X_y=True)
    np.save(folder / "wine.npy", features)
    labels = np.where(np.arange(178) % 4 == 0, classes, -1)
    sm.save(sm.LRML().fit(features, labels), folder / "wine")
    sm.save(sm.LRML(n_components=3).fit(features, labels), folder / "narrow")
    return folder


@pytest.fixture
def loaded(home: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedRun:
    """The run of photographs, embedded five at a time."""
    monkeypatch.setattr(bulk, "CHUNK", 5)
    return load_run(home / "run")


def read_back(path: Path) -> tuple[list[str], Any]:
    """Names and embeddings as they were written."""
    if path.suffix == ".csv":
        header, *rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        assert header[:2] == ["name", "e0"]
        return [row[0] for row in rows], np.array([row[1:] for row in rows], dtype=np.float32)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return arrays["names"].tolist(), arrays["embeddings"]
    return json.loads(path.with_name(path.name + ".json").read_text())["names"], np.load(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_all_rows_are_written_once_and_in_order(home: Path, tmp_path: Path, loaded: LoadedRun, suffix: str) -> None:
    out = tmp_path / f"out{suffix}"
    photos = new_examples(loaded, home / "photos")
    embedded = embed_to(loaded, photos, out)
    names, values = read_back(out)
    assert tuple(names) == embedded.names == photos.names
    np.testing.assert_array_equal(values, embedded.embeddings.numpy().astype(np.float32))
    np.testing.assert_allclose(values, loaded.fitted.embeddings, atol=1e-6)
    assert {path.name for path in tmp_path.iterdir()} == {out.name} | ({"out.npy.json"} if suffix == ".npy" else set())


def test_nothing_is_written_into_a_run(home: Path, tmp_path: Path, loaded: LoadedRun) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    with pytest.raises(InputError, match="inside the run"):
        embed_to(loaded, new_examples(loaded, home / "photos"), tmp_path / "run" / "model.npy")
    assert load_run(tmp_path / "run").fitted.examples.names == loaded.fitted.examples.names


def counting(monkeypatch: pytest.MonkeyPatch, fails_at: int = 0) -> list[range]:
    """The rows that are embedded from now on; at ``fails_at`` calls it is interrupted."""
    done: list[range] = []
    embed_some = bulk.embed_some

    def counted(loaded: LoadedRun, collection: Any, rows: range, progress: Any = None) -> Any:
        if len(done) + 1 == fails_at:
            raise KeyboardInterrupt
        done.append(rows)
        return embed_some(loaded, collection, rows, progress)

    monkeypatch.setattr(bulk, "embed_some", counted)
    return done


def test_what_is_done_is_not_done_again(
    home: Path, tmp_path: Path, loaded: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = new_examples(loaded, home / "photos")
    whole = embed_to(loaded, photos, tmp_path / "whole.npy")
    with monkeypatch.context() as patch:
        counting(patch, fails_at=4)
        with pytest.raises(KeyboardInterrupt):
            embed_to(loaded, photos, tmp_path / "out.npy")
    assert (tmp_path / ".out.npy.semimetric-parts").is_dir()
    done = counting(monkeypatch)
    again = embed_to(loaded, photos, tmp_path / "out.npy")
    assert [rows.start for rows in done] == [15, 20]
    assert again.names == whole.names
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.npy",
        "out.npy.json",
        "whole.npy",
        "whole.npy.json",
    ]


def test_ctrl_c_says_how_to_go_on(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 5)
    embed = ["embed", home / "run", home / "photos", "-o", tmp_path / "out.npy"]
    with monkeypatch.context() as patch:
        counting(patch, fails_at=3)
        done = semimetric(*embed)
    assert (done.code, done.out, done.err) == (130, "", "interrupted; the same command continues\n")
    assert semimetric(*embed).code == 0


def interrupted(loaded: LoadedRun, examples: Any, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        counting(patch, fails_at=2)
        with pytest.raises(KeyboardInterrupt):
            embed_to(loaded, examples, out)


def test_parts_of_something_else_are_never_used(
    home: Path, tmp_path: Path, loaded: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npy"
    wine, narrow = load_run(home / "wine"), load_run(home / "narrow")
    vectors = new_examples(wine, home / "wine.npy")
    interrupted(wine, vectors, out, monkeypatch)
    with pytest.raises(InputError, match="parts of another run or of other examples"):
        embed_to(narrow, new_examples(narrow, home / "wine.npy"), out)
    with pytest.raises(InputError, match="parts of another run or of other examples"):
        embed_to(loaded, new_examples(loaded, home / "photos"), out)
    np.save(tmp_path / "other.npy", np.load(home / "wine.npy") + 1)
    with pytest.raises(InputError, match="parts of another run or of other examples"):
        embed_to(wine, new_examples(wine, tmp_path / "other.npy"), out)
    monkeypatch.setattr(bulk, "CHUNK", 7)
    with pytest.raises(InputError, match="parts of another run or of other examples"):
        embed_to(wine, vectors, out)
    for part in (tmp_path / ".out.npy.semimetric-parts").iterdir():
        part.unlink()  # killed while it was removed
    assert embed_to(narrow, new_examples(narrow, home / "wine.npy"), out).embeddings.shape == (178, 3)
    assert not (tmp_path / ".out.npy.semimetric-parts").exists()


def test_a_photograph_that_was_replaced_meanwhile_is_noticed(
    tmp_path: Path, loaded: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = write_folder(tmp_path / "photos", labelled=4, unlabelled=0)
    interrupted(loaded, new_examples(loaded, photos), tmp_path / "out.npy", monkeypatch)
    write_photo(photos / "red" / "photo 0.jpg", COLOURS["blue"], 99, size=(90, 80))
    with pytest.raises(InputError, match="parts of another run or of other examples"):
        embed_to(loaded, new_examples(loaded, photos), tmp_path / "out.npy")


def test_a_full_disk_is_a_sentence_and_the_work_is_kept(
    home: Path, tmp_path: Path, loaded: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    photos = new_examples(loaded, home / "photos")
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "write_atomically", full)
        with pytest.raises(RunError, match=r"out\.npy cannot be written: .*No space left on device. Make room"):
            embed_to(loaded, photos, tmp_path / "out.npy")
    done = counting(monkeypatch)
    assert len(embed_to(loaded, photos, tmp_path / "out.npy").names) == 23
    assert done == []
    with monkeypatch.context() as patch:
        patch.setattr(csv_file, "write_text", full)
        with pytest.raises(RunError, match=r"out\.csv cannot be written: .*No space left"):
            write_predictions(predict_collection(loaded, photos), tmp_path / "out.csv")


def test_damaged_photographs_are_left_out_wherever_they_are(tmp_path: Path, loaded: LoadedRun) -> None:
    photos = write_folder(tmp_path / "photos", labelled=4, unlabelled=3)
    names = [f"a{number}.jpg" for number in range(7)]
    for name in names:  # a whole chunk, and more
        (photos / name).write_text("no photograph")
    (photos / "notes.txt").write_text("no photograph")
    found = new_examples(loaded, photos)
    embedded = embed_to(loaded, found, tmp_path / "out.npy")
    assert set(embedded.skipped) == {*names, "notes.txt"}
    assert embedded.names == tuple(name for name in found.names if name not in names)
    assert json.loads((tmp_path / "out.npy.json").read_text())["skipped"] == embedded.skipped
    predicted = predict_collection(loaded, found, risk=0.0)
    write_predictions(predicted, tmp_path / "out.csv")
    assert predicted.skipped == embedded.skipped
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["name"] for row in rows] == list(found.names)
    assert {row["name"]: row["reason"] for row in rows if not row["label"]} == {
        name: reason for name, reason in embedded.skipped.items() if name in names
    }


def test_names_are_those_of_predict_and_probabilities_add_up(home: Path, tmp_path: Path, loaded: LoadedRun) -> None:
    found = new_examples(loaded, home / "photos")
    write_predictions(predict_collection(loaded, found, risk=0.0), tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["label"] for row in rows] == estimator_of(loaded).predict(found.paths).tolist()
    shares = estimator_of(loaded).predict_proba(found.paths).max(1)
    np.testing.assert_allclose([float(row["probability"]) for row in rows], shares, atol=1e-4)
