"""Photographs in experiments: described as they are read, kept, left out and counted, with weights that are known."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.birds import CLASSES, EACH, write_birds
from helpers.command import semimetric
from helpers.opened import opened_below
from rich.console import Console
from safetensors.torch import save_file

from semimetric import load
from semimetric.cli.outcome import print_outcome
from semimetric.core.errors import DataWarning, InputError, RunError
from semimetric.core.locks import locked
from semimetric.data import Dataset, Examples
from semimetric.encoders import RMAC, GoogLeNet, googlenet
from semimetric.encoders.registry import ENCODERS
from semimetric.pipeline.benchmark import evaluate_run, fit_benchmark
from semimetric.pipeline.data import load_examples
from semimetric.pipeline.plan import Plan
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.reporting.progress import RichProgress
from semimetric.training import Silent

CPU = torch.device("cpu")
HALF = CLASSES * EACH // 2


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_birds(tmp_path / "birds", monkeypatch)


def described_by(keep: Path | None = None, **changes: Any) -> Plan:
    """A plan that needs the descriptors of a random network."""
    kept = {} if keep is None else {"descriptors": str(keep)}
    values = {"backbone": "googlenet", "weights": "random", "side": 64, "labels_per_class": 3, "epochs": 0}
    return resolve_benchmark("cub200", "affinity-triplets", **(values | {"components": 6, "k": 6} | kept | changes))


def tuned_by(weights: Path, **changes: Any) -> Plan:
    """A plan that trains the network itself, from a file."""
    values = {"backbone": "", "encoder": "googlenet", "preprocess": "imagenet", "side": 64, "labels_per_class": 3}
    values |= {"weights": str(weights), "epochs": 0, "validation_share": 0.0, "selection": "last", "components": 6}
    return resolve_benchmark("cub200", "triplet", **(values | changes))


def refuse_to_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semimetric.data.photographs.photos.open_image", lambda *_: pytest.fail("decoded"))


def test_photographs_are_described_without_being_in_memory_all_at_once(
    birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = "semimetric.data.photographs.photos.read_photos"
    monkeypatch.setattr(whole, lambda *_, **__: pytest.fail("read into memory"))
    dataset = load_examples(described_by(), birds, CPU)
    assert dataset.train.inputs.shape == (HALF, 1024)
    assert dataset.test.labels.tolist() == [label for label in range(4, 8) for _ in range(EACH)]
    assert dataset.skipped == {}


def test_kept_descriptors_are_taken_without_decoding_a_photograph(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = described_by(tmp_path / "kept.safetensors")
    first = load_examples(experiment, birds, CPU)
    refuse_to_decode(monkeypatch)
    again = load_examples(experiment, birds, CPU)
    for part, other in ((first.train, again.train), (first.test, again.test)):
        assert torch.equal(part.inputs, other.inputs)
        assert torch.equal(part.labels, other.labels)
    assert again.class_names == first.class_names


def test_labels_stay_with_kept_descriptors_where_photographs_are_damaged(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_examples(described_by(), birds, CPU)
    bad = sorted((birds / "cub200" / "train").rglob("*.png"))[7]
    bad.write_bytes(b"")
    experiment = described_by(tmp_path / "kept.safetensors")
    rows = [row for row in range(HALF) if row != 7]
    for kept in (False, True):
        with pytest.warns(DataWarning, match=r"23 of 24 training .*1 cannot be decoded: .*1\.png \(it is empty\)"):
            dataset = load_examples(experiment, birds, CPU)
        assert dataset.train.labels.tolist() == whole.train.labels[rows].tolist()
        assert torch.allclose(dataset.train.inputs, whole.train.inputs[rows], atol=1e-5)
        assert dataset.skipped == {"train/002.bird_1/1.png": "it is empty"}, kept
        refuse_to_decode(monkeypatch)


def moved(folder: Path) -> None:
    (folder / "train" / "001.bird_0" / "0.png").rename(folder / "train" / "002.bird_1" / "9.png")


def renamed(folder: Path) -> None:
    (folder / "train" / "001.bird_0" / "0.png").rename(folder / "train" / "001.bird_0" / "00.png")


def exchanged(folder: Path) -> None:
    shutil.copy(folder / "test" / "005.bird_4" / "0.png", folder / "test" / "005.bird_4" / "1.png")


@pytest.mark.filterwarnings("ignore::semimetric.core.errors.DataWarning")
@pytest.mark.parametrize("change", [moved, renamed, exchanged])
def test_kept_descriptors_of_other_photographs_are_refused(
    birds: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    experiment = described_by(tmp_path / "kept.safetensors")
    load_examples(experiment, birds, CPU)
    change(birds / "cub200")
    with pytest.raises(InputError, match=r"kept.safetensors' differ in photographs from what is asked"):
        load_examples(experiment, birds, CPU)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"side": 65}, "side"),
        ({"fit": "squash"}, "fit"),
        ({"backbone": "googlenet-rmac"}, "backbone"),
        ({"seed": 1}, "weights"),
    ],
)
def test_kept_descriptors_of_other_settings_are_refused(
    birds: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    keep = tmp_path / "kept.safetensors"
    load_examples(described_by(keep), birds, CPU)
    with pytest.raises(InputError, match=f"differ in {named} from"):
        load_examples(described_by(keep, **changes), birds, CPU)


def test_a_side_that_cannot_be_is_refused_before_anything_is_kept(birds: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="side must be at least 0, got -3"):
        load_examples(described_by(tmp_path / "kept.safetensors", side=-3), birds, CPU)
    assert not (tmp_path / "kept.safetensors").exists()


def test_too_few_photographs_are_told_before_one_is_decoded(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_decode(monkeypatch)
    with pytest.raises(InputError, match=f"too few examples, {EACH}: {EACH + 1} labelled"):
        load_examples(described_by(labels_per_class=EACH + 1), birds, CPU)


def test_a_damaged_file_of_descriptors_is_not_taken_for_a_run(birds: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept.safetensors"
    keep.write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"kept.safetensors' cannot be read: .*Remove that file, or name another"):
        load_examples(described_by(keep), birds, CPU)


@pytest.mark.slow
@pytest.mark.filterwarnings("always::semimetric.core.errors.DataWarning")
def test_warnings_of_a_command_are_sentences(birds: Path, tmp_path: Path) -> None:
    next((birds / "cub200" / "test").rglob("1.png")).write_bytes(b"")
    small = ("--side", 64, "--labels-per-class", 3, "--components", 6, "--epochs", 0, "--selection", "last")
    given = ("--dataset", "cub200", "--data-dir", birds, "--weights", "random", "--device", "cpu", *small)
    done = semimetric("fit", "--method", "rotation", "--out", tmp_path / "run", *given)
    assert done.code == 0, done.err
    slow, missing = (line for line in done.err.splitlines() if line)
    assert slow.startswith("warning: googlenet itself is trained here, which takes hours on a CPU. With --backbone")
    assert missing.startswith("warning: ")
    assert "cannot be decoded: " in missing
    described = semimetric("fit", "--method", "triplet", "--out", tmp_path / "described", *given)
    assert "itself is trained" not in described.err


@pytest.mark.parametrize("backbone", ["googlenet", ""])
@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning", "ignore::semimetric.core.errors.DataWarning")
def test_examples_of_a_run_have_the_names_of_their_files(birds: Path, tmp_path: Path, backbone: str) -> None:
    bad = sorted((birds / "cub200" / "train").rglob("*.png"))[1]
    bad.write_bytes(b"")
    weights = next(network_files(tmp_path, 0))
    experiment = described_by(validation_share=0.0, selection="last") if backbone else tuned_by(weights)
    fit_benchmark(experiment, tmp_path / "run", birds, "cpu")
    found = load(tmp_path / "run")
    names = json.loads((tmp_path / "run" / "examples.json").read_text())["names"]
    assert len(names) == len(set(names)) == HALF - 1
    assert str(bad.relative_to(birds / "cub200")) not in names
    again = found.transform([str(birds / "cub200" / name) for name in names])
    torch.testing.assert_close(torch.tensor(again), torch.tensor(found.embedding_), rtol=1e-4, atol=1e-4)


def test_other_images_are_described_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4, 3, 64, 64), generator=generator).byte()
    small = Examples(images, torch.tensor([0, 0, 1, 1]))
    loaded = Dataset("cifar10", small, small, ("a", "b"))
    monkeypatch.setattr("semimetric.pipeline.data.load_dataset", lambda *_, **__: loaded)
    experiment = resolve_benchmark("cifar10", "triplet", backbone="googlenet", weights="random", encoder="linear")
    assert load_examples(experiment, None, CPU).train.inputs.shape == (4, 1024)


class Stages(Silent):
    """Keeps what is told of the stages."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int | None]] = []

    def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
        self.seen.append((what, done, total))


def test_progress_tells_how_many_photographs_are_described(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semimetric.encoders.photographs.BATCH", 5)
    monkeypatch.setenv("SEMIMETRIC_CACHE", "off")
    stages = Stages()
    load_examples(described_by(), birds, CPU, stages)
    assert stages.seen[0] == ("listing 48 photographs", 0, None)
    assert [done for what, done, _ in stages.seen if what == "photographs described"] == [
        *(5, 10, 15, 20, 24),
        *(29, 34, 39, 44, 48),
    ]
    assert {total for what, _, total in stages.seen if what == "photographs described"} == {48}


def test_progress_tells_how_many_photographs_are_decoded(birds: Path) -> None:
    stages = Stages()
    load_examples(tuned_by(Path("unread")), birds, CPU, stages)
    assert stages.seen == [("photographs decoded", done, 48) for done in range(1, 49)]


def test_a_bar_counts_epochs_as_epochs_and_photographs_as_photographs() -> None:
    shown = []
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=160)
        progress = RichProgress(console)
        progress.stage("photographs decoded", 7, 48)
        progress.end()
        progress.begin(3, 1)
        progress.end()
        progress.stage("scoring the test set")
        progress.end()
        shown.append(console.file.getvalue())
    decoding, _, training = shown[0].partition("training")
    training, _, scoring = training.partition("scoring the test set")
    assert "photographs decoded" in decoding
    assert "7/48" in decoding
    assert "1/3 epochs" in training
    assert "epochs" not in decoding + scoring
    assert shown[1] == ""


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning", "ignore::semimetric.core.errors.DataWarning")
def test_a_run_says_which_photographs_are_left_out(
    birds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = sorted((birds / "cub200" / "test").rglob("[12].png"))[:7]
    for path in bad:
        path.write_bytes(b"")
    fit_benchmark(described_by(), tmp_path / "run", birds, "cpu")
    outcome = json.loads((tmp_path / "run" / "result.json").read_text())
    assert outcome["skipped"] == 7
    names = [path.relative_to(birds / "cub200").as_posix() for path in bad]
    assert outcome["skipped_files"] == dict.fromkeys(names[:5], "it is empty")
    print_outcome(outcome)
    printed = capsys.readouterr().out
    assert f"7 photographs are left out, the first {names[0]} (it is empty); more in result.json\n" in printed
    print_outcome(outcome | {"skipped": 0, "skipped_files": {}})
    assert "left out" not in capsys.readouterr().out


def network_files(folder: Path, seed: int) -> Iterator[Path]:
    """Random GoogLeNets in the two forms of their files."""
    torch.manual_seed(seed)
    for name, batch_norm in (("bvlc", False), ("torchvision", True)):
        state = GoogLeNet(batch_norm).state_dict()
        save_file(
            {theirs: state[ours].clone() for theirs, ours in googlenet._names_here(batch_norm).items()},
            folder / f"{name}.safetensors",
        )
        yield folder / f"{name}.safetensors"


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("encoder", ["googlenet", "googlenet-rmac"])
def test_a_trained_network_is_scored_without_the_file_it_started_from(
    birds: Path, tmp_path: Path, encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = googlenet.googlenet_spec("googlenet-rmac", lambda network: RMAC(network, sides=(64,)))
    monkeypatch.setitem(ENCODERS._loaded, "googlenet-rmac", small)
    for weights in network_files(tmp_path, 3):
        run = tmp_path / f"run of {weights.stem}"
        outcome = fit_benchmark(tuned_by(weights, encoder=encoder), run, birds, "cpu")
        weights.unlink()
        assert evaluate_run(run, birds, "cpu")["scores"] == pytest.approx(outcome["final"])


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("tuned", [False, True])
def test_a_run_knows_its_weights_and_refuses_others(birds: Path, tmp_path: Path, tuned: bool) -> None:
    weights = next(network_files(tmp_path, 3))
    known = hashlib.sha256(weights.read_bytes()).hexdigest()
    experiment = tuned_by(weights) if tuned else described_by(weights=str(weights))
    outcome = fit_benchmark(experiment, tmp_path / "run", birds, "cpu")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["weights_sha256"] == known
    assert fit_benchmark(experiment, tmp_path / "run", birds, "cpu", resume=True)["final"] == outcome["final"]
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    next(network_files(tmp_path, 4))
    message = rf"was made with weights of SHA-256 {known}, and those in .*bvlc\.safetensors have [0-9a-f]{{64}}\. Use"
    with pytest.raises(RunError, match=rf"weights_sha256 was '{known}'"):
        fit_benchmark(experiment, tmp_path / "run", tmp_path / "nowhere", "cpu", resume=True)
    if not tuned:
        with pytest.raises(RunError, match=message):
            evaluate_run(tmp_path / "run", tmp_path / "nowhere", "cpu", weights=weights)
        with pytest.raises(InputError, match="a file that a run names is not opened"):
            evaluate_run(tmp_path / "run", birds, "cpu")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    weights.unlink()
    with pytest.raises(InputError, match=r"bvlc\.safetensors does not exist"):
        fit_benchmark(experiment, tmp_path / "run", birds, "cpu", resume=True)


def test_runs_without_pretrained_weights_have_no_digest(tmp_path: Path) -> None:
    fit_benchmark(resolve_benchmark("digits", "triplet", epochs=0, labels_per_class=3), tmp_path / "run", device="cpu")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["weights_sha256"] is None


class StopAfter(Silent):
    """Ends training as a kill would, before anything is written that the end of a fit writes."""

    def epoch(self, record: dict[str, Any]) -> None:
        if record["epoch"] == 1:
            raise RuntimeError("killed")


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_other_settings_are_refused_before_a_photograph_is_opened(birds: Path, tmp_path: Path) -> None:
    with opened_below(birds) as opened:
        fit_benchmark(described_by(), tmp_path / "run", birds, "cpu")
    assert len(opened) > HALF
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with opened_below(birds) as opened:
        with pytest.raises(RunError, match=r"training\.lr was"):
            fit_benchmark(described_by(lr=0.5), tmp_path / "run", birds, "cpu", resume=True)
        with locked(tmp_path / "run"), pytest.raises(RunError, match="in use"):
            fit_benchmark(described_by(), tmp_path / "run", birds, "cpu", resume=True)
    assert not opened
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_a_killed_run_on_descriptors_is_scored_and_continued(birds: Path, tmp_path: Path) -> None:
    experiment = described_by(epochs=2, validation_share=0.0, selection="last")
    with pytest.raises(RuntimeError, match="killed"):
        fit_benchmark(experiment, tmp_path / "run", birds, "cpu", progress=StopAfter())
    assert evaluate_run(tmp_path / "run", birds, "cpu")["epoch"] == 1
    assert fit_benchmark(experiment, tmp_path / "run", birds, "cpu", resume=True)["epochs"] == 2


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_features_need_no_weights_where_no_run_is_written(birds: Path) -> None:
    features = load_examples(described_by(), birds, CPU)
    assert fit_benchmark(described_by(weights=""), None, device="cpu", dataset=features)["epochs"] == 0
