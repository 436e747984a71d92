"""A fit that starts from a run: its network, metric and head, fewer epochs, no old photograph described again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.command import semimetric
from helpers.frozen import SEEN, frozen_network
from helpers.own_photos import write_folder, write_photo
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.core.files import read_tensors
from semimetric.methods import build_method
from semimetric.model.folder import load_run
from semimetric.pipeline.warm import read_start


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """Photographs of three classes, a run on them, and the options of its network."""
    home = tmp_path_factory.mktemp("warm")
    write_folder(home / "photos", 4, 9)
    with frozen_network(home) as network:
        done = semimetric("fit", home / "photos", "-o", home / "run", *network, "--device", "cpu", "--k", 4)
        assert done.code == 0, done.err
        yield home, network


@pytest.fixture
def photos(home: tuple[Path, list[str]], tmp_path: Path) -> Path:
    """The photographs with five more, three of them of a new class."""
    folder = Path(shutil.copytree(home[0] / "photos", tmp_path / "photos"))
    for number in range(3):
        write_photo(folder / "violet" / f"{number}.png", (200, 0, 200), 600 + number)
    for number in range(2):
        write_photo(folder / "unlabelled" / f"more {number}.png", (200, 0, 200), 700 + number)
    return folder


def test_new_labels_and_classes_are_learned_in_an_eighth_of_the_epochs(
    home: tuple[Path, list[str]], photos: Path, tmp_path: Path
) -> None:
    first, seen = load_run(home[0] / "run"), SEEN[0]
    done = semimetric("fit", photos, "--from", home[0] / "run", "-o", tmp_path / "second", "--device", "cpu")
    assert done.code == 0, done.err
    assert f"started from {home[0] / 'run'}" in done.out
    assert f"started from {home[0] / 'run'}" in semimetric("info", tmp_path / "second").out
    assert SEEN[0] == seen + 5
    second = load_run(tmp_path / "second")
    assert (first.fitted.facts["epochs"], second.fitted.facts["epochs"]) == (40, 5)
    assert second.fitted.facts["trust"] is None
    assert second.config["plan"]["method_settings"]["k"] == 4
    assert set(second.fitted.examples.classes) == {"blue", "green", "red", "violet"}
    named = dict(zip(second.fitted.examples.names, second.fitted.posteriors.shares.argmax(1).tolist(), strict=True))
    for name, number in named.items():
        wanted = "violet" if "more" in name else name.removeprefix("unlabelled/").split("/")[0].split(" ")[0]
        assert second.fitted.examples.classes[number] == wanted, name


def test_without_epochs_the_run_itself_is_there(home: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder = (home[0] / "photos", "--from", home[0] / "run", "-o", tmp_path / "same")
    assert semimetric("fit", *folder, "--epochs", 0, "--device", "cpu").code == 0
    before, after = (load_run(path).fitted for path in (home[0] / "run", tmp_path / "same"))
    torch.testing.assert_close(after.embeddings, before.embeddings)
    learned = [read_tensors(path / "model.safetensors")[0] for path in (home[0] / "run", tmp_path / "same")]
    for name in ("method.head.weight", "method.head.bias", "method.directions", "method.steps"):
        torch.testing.assert_close(learned[1][name], learned[0][name], msg=name)


def test_the_head_keeps_its_rows_under_other_numbers() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    method = build_method("consensus", metric="within")
    method.on_fit_begin(torch.rand(6, 3), labels, 3, torch.Generator())
    weight, bias = torch.arange(6.0).reshape(2, 3), torch.tensor([7.0, 8.0])
    method.start_from(
        {"head.weight": weight, "head.bias": bias, "placed": torch.tensor(True)}, torch.tensor([1, -1, 0])
    )
    assert torch.equal(method.head.weight, torch.stack([weight[1], torch.zeros(3), weight[0]]))
    assert method.head.bias.tolist() == [8.0, 0.0, 7.0]
    assert bool(method.placed)


def test_another_network_or_kind_of_data_is_refused(home: tuple[Path, list[str]], tmp_path: Path) -> None:
    asked = ("fit", home[0] / "photos", "--from", home[0] / "run", "-o", tmp_path / "x")
    assert (
        "its encoder is frozen, and small-cnn is asked for" in semimetric(*asked, "--encoder", "small-cnn").sentence()
    )
    assert "its method is consensus, and triplet is asked for" in semimetric(*asked, "--method", "triplet").sentence()
    assert "side was 16 and is 24" in semimetric(*asked, "--side", 24).sentence()
    (tmp_path / "t.csv").write_text("a,b,label\n" + "".join(f"{n},{n % 3},{n % 2}\n" for n in range(20)))
    table = semimetric("fit", tmp_path / "t.csv", "--from", home[0] / "run", "-o", tmp_path / "x")
    assert "its data is photographs, and vectors is asked for" in table.sentence()
    assert not (tmp_path / "x").exists()
    linear = semimetric("fit", tmp_path / "t.csv", "-o", tmp_path / "linear", "--method", "lrml")
    assert linear.code == 0, linear.err
    with pytest.raises(InputError, match="has no network, so no fit can start from it"):
        read_start(tmp_path / "linear")


def test_an_estimator_starts_from_a_run(tmp_path: Path) -> None:
    features, classes = load_wine(return_X_y=True)
    labels = classes.copy()
    labels[10:] = -1
    labels[60:65], labels[140:145] = 1, 2
    first = sm.SemiMetric(random_state=0, epochs=10).fit(features, labels)
    sm.save(first, tmp_path / "run")
    labels[70:75] = 1
    second = sm.SemiMetric(random_state=0).fit(features, labels, from_run=tmp_path / "run")
    assert second.n_iter_ == 5
    assert second.score(features, classes) >= first.score(features, classes) - 0.01
    with pytest.raises(InputError, match=r"method was 'consensus' and is 'triplet'"):
        sm.SemiMetric("triplet", random_state=0).fit(features, labels, from_run=tmp_path / "run")


def _table(path: Path, colours: list[str]) -> Path:
    """Rows of two classes, which the size tells; every third has a label."""
    lines = ["size,colour,label"]
    for row, colour in enumerate(colours):
        lines.append(f"{row % 2 + row / 100},{colour},{('small', 'large')[row % 2] if row % 3 == 0 else ''}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_columns_of_a_further_table_become_the_features_of_the_run(tmp_path: Path) -> None:
    first = _table(tmp_path / "first.csv", ["red"] * 20 + ["blue"] * 10)
    done = semimetric("fit", first, "-o", tmp_path / "run", "--epochs", 2, "--k", 4)
    assert done.code == 0, done.err
    more = _table(tmp_path / "more.csv", ["red"] * 20 + ["blue"] * 40)  # blue is the most frequent now
    start = ("fit", more, "--from", tmp_path / "run", "-o", tmp_path / "second")
    refused = semimetric(*start, "--types", "size=categorical")
    assert refused.code == 2
    assert "those of the run that the fit starts from" in refused.err
    scaled = semimetric(*start, "--preprocess", "standardize")
    assert scaled.code == 2
    assert "preprocess was 'none' and is 'standardize'" in scaled.err
    done = semimetric(*start)
    assert done.code == 0, done.err
    before, after = (load_run(tmp_path / name).fitted.schema for name in ("run", "second"))
    assert before is not None
    assert after is not None
    assert after.as_dict() == before.as_dict()
    assert after.features == ("size", "colour: red", "colour: blue")


def test_columns_of_a_further_frame_become_the_features_of_the_run(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frames = [pandas.read_csv(_table(tmp_path / "t.csv", ["red"] * 20 + ["blue"] * n)) for n in (10, 40)]
    labels = [frame.pop("label").fillna("") for frame in frames]
    first = sm.SemiMetric(random_state=0, epochs=2).fit(frames[0], labels[0])
    sm.save(first, tmp_path / "run")
    second = sm.SemiMetric(random_state=0).fit(frames[1], labels[1], from_run=tmp_path / "run")
    assert second.fitted_.schema.as_dict() == first.fitted_.schema.as_dict()
    assert second.n_features_in_ == 2
    assert len(second.predict(frames[0])) == 30
