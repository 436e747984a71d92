"""Two processes that train one model equal one process, and one that is left alone says so."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from helpers.own_photos import COLOURS, write_photo
from helpers.ranks import TRAININGS, all_of_it, start, train
from torch import Tensor

from semimetric.training import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of one process and of two, which were started together with it, and what the two printed."""
    folder = tmp_path_factory.mktemp("ranks")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("SEMIMETRIC_CACHE", "off")
    for number in range(7):
        write_photo(folder / "photos" / f"{number}.png", COLOURS["red"], number)
    for number in (0, 3):
        (folder / "photos" / f"{number}.png").write_text("no photograph")
    before = torch.are_deterministic_algorithms_enabled()
    all_of_it(folder, "one")
    torch.use_deterministic_algorithms(before)
    monkeypatch.undo()
    first, second = start(folder)
    out, err = first.communicate(timeout=120)
    assert first.returncode == 0, err + second.communicate()[1]
    second.communicate()
    assert second.returncode == -signal.SIGKILL
    (folder / "printed").write_text(out)
    return folder


def written(folder: Path, name: str) -> dict[str, Tensor]:
    return Run.open(folder / name).read_tensors("checkpoint.safetensors")[0]


def check_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        largest = max([1.0, *tensor.double().abs().flatten().tolist()])
        torch.testing.assert_close(other[name].double(), tensor.double(), rtol=0, atol=1e-5 * largest, msg=name)


@pytest.mark.parametrize("training", TRAININGS)
def test_two_processes_train_as_one(folder: Path, training: str) -> None:
    check_same(written(folder, f"{training}-one"), written(folder, f"{training}-two"))
    one, two = (Run.open(folder / f"{training}-{name}").history() for name in ("one", "two"))
    assert [record.keys() for record in one] == [record.keys() for record in two]
    for record, other in zip(one, two, strict=True):
        assert record.pop("signs", []) == other.pop("signs", [])
        del record["seconds"], other["seconds"]
        assert other == pytest.approx(record, rel=1e-4, abs=1e-5)


def test_any_number_of_processes_continues_a_run(folder: Path) -> None:
    whole = written(folder, "consensus-one")
    check_same(whole, written(folder, "consensus-one-half"))
    train("consensus", folder / "consensus-two-half")
    check_same(whole, written(folder, "consensus-two-half"))


def test_a_process_that_is_left_alone_ends_with_a_sentence_and_its_checkpoint_is_usable(folder: Path) -> None:
    sentence, seconds = (folder / "printed").read_text().splitlines()
    assert sentence.startswith("RankLost: another process of this fit has ended")
    assert sentence.endswith("continue with the same command and --resume.")
    assert float(seconds) < 60
    assert Run.open(folder / "killed").history()[-1]["epoch"] == 1
    train("consensus", folder / "killed")
    check_same(written(folder, "consensus-one"), written(folder, "killed"))
