"""Commands never replace what a user has, unless told to."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.command import semimetric
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.core.files import clear_leftovers, write_atomically

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A table without labels, and a run of it."""
    features, classes = load_wine(return_X_y=True)
    header = ",".join(f"c{column}" for column in range(features.shape[1]))
    np.savetxt(tmp_path / "in.csv", features, delimiter=",", header=header, comments="")
    np.save(tmp_path / "in.npy", features)
    sm.save(sm.LRML(n_components=3).fit(features, np.where(np.arange(178) % 4 == 0, classes, -1)), tmp_path / "run")
    return tmp_path


@pytest.mark.parametrize("command", ["embed", "predict"])
def test_an_output_that_is_there_is_replaced_only_on_request(home: Path, command: str) -> None:
    out = home / "out.csv"
    out.write_text("precious")
    words = (command, home / "run", home / "in.npy", "-o", out)
    assert "exists" in semimetric(*words).sentence()
    assert out.read_text() == "precious"
    assert semimetric(*words, "--replace").code == 0
    assert out.read_text().startswith("name,")


@pytest.mark.parametrize("command", ["embed", "predict"])
def test_an_input_is_never_the_output(home: Path, command: str) -> None:
    before = (home / "in.csv").read_bytes()
    said = semimetric(command, home / "run", home / "in.csv", "-o", home / "in.csv", "--replace").sentence()
    assert "is an input of this command" in said
    assert (home / "in.csv").read_bytes() == before


@pytest.mark.parametrize("theirs", ["out.npy.parts/000000.safetensors", ".out.npy.12345678.tmp", "out.npy.parts/x"])
def test_files_with_names_like_temporary_ones_stay(home: Path, theirs: str) -> None:
    (home / theirs).parent.mkdir(exist_ok=True)
    (home / theirs).write_text("precious")
    assert semimetric("embed", home / "run", home / "in.npy", "-o", home / "out.npy").code == 0
    assert (home / theirs).read_text() == "precious"


def test_a_folder_where_parts_go_is_left_alone_if_it_holds_something_else(home: Path) -> None:
    theirs = home / ".out.npy.semimetric-parts" / "thesis.txt"
    theirs.parent.mkdir()
    theirs.write_text("precious")
    assert "is in the way" in semimetric("embed", home / "run", home / "in.npy", "-o", home / "out.npy").sentence()
    assert theirs.read_text() == "precious"


@pytest.mark.parametrize("command", ["embed", "predict"])
@pytest.mark.parametrize("flags", [[], ["--replace"]])
def test_an_output_never_lies_in_a_run(home: Path, command: str, flags: list[str]) -> None:
    before = sorted(path.name for path in (home / "run").iterdir())
    words = (command, home / "run", home / "in.npy", "-o", home / "run" / "new.csv", *flags)
    assert "lies inside the run" in semimetric(*words).sentence()
    assert sorted(path.name for path in (home / "run").iterdir()) == before


def test_an_input_under_another_name_is_never_the_output(home: Path) -> None:
    (home / "linked.npy").hardlink_to(home / "in.npy")
    words = ("embed", home / "run", home / "in.npy", "-o", home / "linked.npy", "--replace")
    assert "is an input of this command" in semimetric(*words).sentence()


def test_temporary_files_of_a_living_writer_are_spared(tmp_path: Path) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text("mine")
        clear_leftovers(tmp_path)

    write_atomically(tmp_path / "x", write)
    assert (tmp_path / "x").read_text() == "mine"


def test_names_beside_an_array_are_an_output_too(home: Path) -> None:
    (home / "out.npy.json").write_text("precious")
    assert "exists" in semimetric("embed", home / "run", home / "in.npy", "-o", home / "out.npy").sentence()
    assert (home / "out.npy.json").read_text() == "precious"


def test_an_index_replaces_a_file_only_on_request(home: Path) -> None:
    pytest.importorskip("faiss", reason="the extra faiss is not installed")
    out = home / "x.faiss"
    out.write_text("precious")
    assert (
        "exists. Name another file, or replace it with --replace"
        in semimetric("index", home / "run", "--to", out).sentence()
    )
    assert out.read_text() == "precious"
    assert semimetric("index", home / "run", "--to", out, "--replace").code == 0


@pytest.mark.parametrize("flags", [[], ["--replace"]])
def test_an_export_never_replaces_files_of_its_run(home: Path, flags: list[str]) -> None:
    before = (home / "run" / "config.json").read_bytes()
    words = ("export", home / "run", "--onnx", "--check", home / "in.npy", "-o", home / "run" / "config.json")
    assert "lies inside the run" in semimetric(*words, *flags).sentence()
    assert (home / "run" / "config.json").read_bytes() == before


def test_paths_with_brackets_are_printed_as_they_are(home: Path) -> None:
    out = home / "r" / "[" / "x]"
    done = semimetric("fit", "--method", "lrml", "--epochs", 1, "-o", out, "--threads", 1)
    assert done.code == 0, done.err
    assert str(out) in done.out
    shutil.move(home / "in.npy", home / "[bold]in.npy")
    done = semimetric("embed", home / "run", home / "[bold]in.npy", "-o", home / "[x].npy")
    assert f"{home}/[x].npy" in done.out
