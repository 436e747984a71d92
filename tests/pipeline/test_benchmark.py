from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.sealed import reseal

from semimetric.core.errors import InputError, RunError
from semimetric.data import load_dataset
from semimetric.data.benchmarks.registry import DATASETS
from semimetric.methods import METHODS, method_names
from semimetric.model.folder import load_run
from semimetric.pipeline.benchmark import evaluate_run, fit_benchmark
from semimetric.pipeline.config import run_config
from semimetric.pipeline.data import benchmark_data
from semimetric.pipeline.fit import prepare
from semimetric.pipeline.plan import Plan
from semimetric.pipeline.presets import preset_names
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.training import Run

QUICK = {"epochs": 1, "partition_size": 200, "batch_size": 200, "k": 6}


def quick(**changes: Any) -> Plan:
    return resolve_benchmark("digits", "affinity-triplets", **(QUICK | changes))


def test_the_paper_preset_is_the_paper() -> None:
    experiment = resolve_benchmark("mnist", "affinity-triplets", preset="paper")
    assert experiment.split.labels_per_class == 10
    assert experiment.split.validation_share == 0.15
    assert (experiment.training.epochs, experiment.training.epochs_per_partition) == (50, 10)
    assert (experiment.training.partition_size, experiment.training.batch_size) == (9000, 100)
    settings = experiment.method_settings
    assert (settings.k, settings.gamma, settings.alpha, settings.components) == (10, 0.99, 40.0, 64)
    cifar = resolve_benchmark("cifar10", "affinity-triplets", preset="paper")
    assert (cifar.split.labels_per_class, cifar.pretraining.pretrain_epochs) == (100, 30)
    assert cifar.method_settings.components == 32


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize(
    ("preset", "dataset"), [(p, d) for p in preset_names() for d in DATASETS if p in DATASETS[d].presets]
)
def test_every_preset_builds_and_its_config_comes_back(preset: str, dataset: str, method: str) -> None:
    if preset == "paper" and not METHODS[method].in_paper:
        with pytest.raises(InputError, match=f"preset 'paper' has no settings for method '{method}'"):
            resolve_benchmark(dataset, method, 3, preset)
        return
    experiment = resolve_benchmark(dataset, method, 3, preset)
    assert Plan.from_dict(json.loads(json.dumps(experiment.as_dict()))) == experiment


def test_digits_have_the_papers_protocol_on_a_small_scale() -> None:
    paper, own = (resolve_benchmark("digits", "affinity-triplets", preset=name) for name in ("paper", "default"))
    assert (paper.split.labels_per_class, paper.split.validation_share) == (10, 0.15)
    assert (paper.training.epochs, paper.training.epochs_per_partition) == (50, 10)
    assert paper.training.selection == "validation"
    assert paper.method_settings.start == "uniform"
    assert paper.network == own.network
    assert (own.split.labels_per_class, own.training.epochs) == (5, 6)


def test_given_values_win_over_the_preset() -> None:
    assert resolve_benchmark("digits", "affinity-triplets", k=4).method_settings.k == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "best"}, "preset must be one of default, paper"),
        ({"method": "magic"}, "method must be one of"),
        ({"seed": 2**70}, "seed must be between 0"),
        ({"dataset": "mnits"}, "Did you mean 'mnist'"),
        ({"temperature": 1.0}, "has no setting 'temperature'"),
        ({"encoder": "none"}, "encoder 'none' is for your own data"),
    ],
)
def test_wrong_names_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_benchmark(**({"dataset": "digits", "method": "affinity-triplets"} | arguments))


def test_withheld_examples_are_in_no_other_set() -> None:
    dataset = load_dataset("digits")
    experiment = resolve_benchmark("digits", "affinity-triplets", validation_share=0.15)
    data = prepare(experiment, benchmark_data(experiment, dataset)).training
    withheld = data.validation_inputs
    assert withheld is not None
    assert len(withheld) + len(data.inputs) == len(dataset.train)
    assert int((data.labels >= 0).sum()) == 50
    raw = {bytes(image.flatten().tolist()) for image in dataset.train.inputs}
    assert len(raw) == len(dataset.train)  # no duplicates, so that rows can be told apart
    trained = {tuple(row) for row in data.inputs.flatten(1).tolist()}
    assert not trained & {tuple(row) for row in withheld.flatten(1).tolist()}


PREPARING = """
import re
import torch
from pathlib import Path
from semimetric.core import arrays as checks
from semimetric.data import Dataset, Examples, stored
from semimetric.pipeline.data import benchmark_data
from semimetric.pipeline.fit import prepare
from semimetric.pipeline.resolve import resolve_benchmark

checks._NUMBERS_AT_A_TIME = stored._CHUNK_NUMBERS = 1 << 20  # or a test would take a hundred times the images

def memory(kind):
    return int(re.search(kind + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def dataset(*counts):
    images = [torch.zeros(count, 3, 128, 128, dtype=torch.uint8) for count in counts]
    for part in images:
        part[::2] = 7
    return Dataset("cub200", *(Examples(part, torch.arange(len(part)) % 10) for part in images), ())

torch.set_num_threads(1)
experiment = resolve_benchmark("cub200", "rotation", validation_share=0.0, selection="last", labels_per_class=3)
prepare(experiment, benchmark_data(experiment, dataset(60, 60)))
large = dataset(800, 200)
before = memory("VmRSS")
prepared = prepare(experiment, benchmark_data(experiment, large))
floats = 4 * (prepared.training.inputs.numel() + prepared.test_inputs.numel())
print((memory("VmHWM") - before) / floats)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing here tells how much memory is in use")
def test_scaling_photographs_takes_little_more_than_the_result() -> None:
    """All numbers once, a byte for each of the training images, and a few at work; a second copy would make it 1.8."""
    done = subprocess.run([sys.executable, "-c", PREPARING], check=True, capture_output=True, text=True, timeout=200)
    assert 0.9 < float(done.stdout) < 1.7


def test_a_run_can_be_scored_again_and_says_the_same(tmp_path: Path) -> None:
    experiment = resolve_benchmark("digits", "affinity-triplets", **QUICK)
    outcome = fit_benchmark(experiment, tmp_path / "run", device="cpu")
    again = evaluate_run(tmp_path / "run", device="cpu")
    assert again["scores"] == outcome["final"]
    assert again["epoch"] == outcome["best_epoch"]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == outcome
    assert {"method", "dataset", "seed", "initial", "final", "best_epoch", "seconds", "run"} <= set(outcome)
    assert outcome["trust"] is None
    assert set(outcome["final"]) == {"nmi", "recall@1", "recall@2", "recall@4", "recall@8"}


def test_a_run_of_consensus_is_judged_and_can_be_scored_again(tmp_path: Path) -> None:
    experiment = resolve_benchmark("digits", "consensus", epochs=2, passes=1, labels_per_class=10)
    outcome = fit_benchmark(experiment, tmp_path / "run", device="cpu")
    assert evaluate_run(tmp_path / "run", device="cpu")["scores"] == outcome["final"]
    assert outcome["best_epoch"] == 2
    assert outcome["trust"]["judged"] == 20
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == outcome
    assert fit_benchmark(experiment, tmp_path / "run", device="cpu", resume=True) == outcome


def test_labels_that_judge_are_not_learned_from_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def note(encoder, inputs, labels, *arguments) -> float:
        seen.append(labels)
        return 0.0

    monkeypatch.setattr("semimetric.pipeline.fit.pretrain", note)
    values = {"epochs": 2, "passes": 1, "labels_per_class": 10, "pretrain_epochs": 1, "hold_back": 0.2}
    fit_benchmark(resolve_benchmark("digits", "consensus", **values), device="cpu")
    assert torch.bincount(seen[0]).tolist() == [8] * 10


def test_resume_continues_to_the_same_end_and_keeps_initial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semimetric.training import Silent

    class Stop(Silent):
        def batch(self, epoch: int, done: int, total: int) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    experiment = resolve_benchmark("digits", "affinity-triplets", **(QUICK | {"epochs": 2, "pretrain_epochs": 1}))
    whole = fit_benchmark(experiment, tmp_path / "whole", device="cpu")
    broken = fit_benchmark(experiment, tmp_path / "broken", device="cpu", progress=Stop())
    assert broken["interrupted"]
    assert evaluate_run(tmp_path / "broken", device="cpu")["scores"] == broken["final"]
    resumed = fit_benchmark(experiment, tmp_path / "broken", device="cpu", resume=True)
    same = ("initial", "final", "best_epoch", "epochs")
    assert {name: resumed[name] for name in same} == {name: whole[name] for name in same}


def test_interrupt_in_the_softmax_training_leaves_a_run_that_starts_again(tmp_path: Path) -> None:
    from semimetric.training import Silent

    class Stop(Silent):
        def stage(self, what: str, done: int = 0, total: int | None = None) -> None:
            if what == "softmax training":
                raise KeyboardInterrupt

    experiment = resolve_benchmark("digits", "affinity-triplets", **(QUICK | {"pretrain_epochs": 2}))
    with pytest.raises(KeyboardInterrupt):
        fit_benchmark(experiment, tmp_path / "run", device="cpu", progress=Stop())
    assert evaluate_run(tmp_path / "run", device="cpu")["epoch"] == 0
    resumed = fit_benchmark(experiment, tmp_path / "run", device="cpu", resume=True)
    assert resumed["final"] == fit_benchmark(experiment, device="cpu")["final"]


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    experiment = resolve_benchmark("digits", "affinity-triplets", **QUICK)
    first = fit_benchmark(experiment, tmp_path / "run", device="cpu")
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert fit_benchmark(experiment, tmp_path / "run", device="cpu", resume=True) == first
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"components": 65}, r"output width \(64\), got 65"),
        ({"k": 2000}, "k must be below the number of examples in the graph"),
        ({"labels_per_class": 500}, "500"),
        ({"encoder": "paper-mnist"}, "takes inputs of shape"),
        ({"selection": "validation"}, "needs withheld validation data"),
        ({"hold_back": 0.2}, "method 'affinity-triplets' gives none"),
    ],
)
def test_nothing_is_written_before_the_input_is_accepted(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_benchmark(
            resolve_benchmark("digits", "affinity-triplets", **(QUICK | changes)), tmp_path / "run", device="cpu"
        )
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_version_says_so(tmp_path: Path) -> None:
    planned = resolve_benchmark("digits", "affinity-triplets")
    config = run_config("benchmark", planned, {}, None) | {"version": "9.9"}
    config["plan"]["training"]["warp"] = 1
    Run.create(tmp_path / "run", config)
    with pytest.raises(RunError, match=r"has no setting 'warp'.*version 9\.9"):
        evaluate_run(tmp_path / "run")


def test_settings_that_do_not_fit_the_model_are_said(tmp_path: Path) -> None:
    fit_benchmark(quick(epochs=0), tmp_path / "run", device="cpu")
    path = tmp_path / "run" / "config.json"
    config = path.read_text()
    path.write_text(config.replace("small-cnn", "mlp"))
    reseal(path.parent)
    with pytest.raises(RunError, match="does not fit its network"):
        evaluate_run(tmp_path / "run", device="cpu")
    path.write_text(config.replace('"k": 6', '"k": "ten"'))
    reseal(path.parent)
    with pytest.raises(RunError, match=r"settings do not fit this version.*k must be a whole number, got 'ten'"):
        evaluate_run(tmp_path / "run", device="cpu")


def test_cuda_that_is_not_there_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(InputError, match="device 'cuda' is not available to torch"):
        fit_benchmark(resolve_benchmark("digits", "affinity-triplets"), tmp_path / "run", device="cuda")


@pytest.mark.gpu
def test_recorded_steps_train_as_plain_ones_do() -> None:
    from semimetric.methods.affinity_triplets import AffinityTriplets

    experiment = resolve_benchmark(
        "digits", "affinity-triplets", **(QUICK | {"epochs": 2, "metric_every": "batch", "lr": 1e-5})
    )
    recorded = fit_benchmark(experiment, device="cuda")
    AffinityTriplets.capturable_loss = False
    try:
        plain = fit_benchmark(experiment, device="cuda")
    finally:
        AffinityTriplets.capturable_loss = True
    assert recorded["final"] == pytest.approx(plain["final"], abs=0.02)


def test_labels_may_be_given_in_place_of_those_that_the_split_draws(tmp_path: Path) -> None:
    plan = quick()
    drawn = benchmark_data(plan, load_dataset("digits")).labels
    given = torch.where(drawn >= 8, -1, drawn)
    fit_benchmark(plan, tmp_path / "run", device="cpu", labels=given)
    fitted = load_run(tmp_path / "run", "cpu").fitted
    assert torch.equal(fitted.labels, given)
    assert fitted.posteriors.classes.tolist() == list(range(8))
    with pytest.raises(InputError, match=r"one class number for each of the \d+ training examples of digits, got 3\."):
        fit_benchmark(plan, tmp_path / "other", device="cpu", labels=given[:3])
    assert not (tmp_path / "other").exists()


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if not kind.needs.labels])
def test_other_labels_change_nothing_for_a_method_without_labels(method: str, tmp_path: Path) -> None:
    """From the dataset to the model; only the scores of the test set know classes."""
    dataset = load_dataset("digits")
    order = torch.randperm(len(dataset.train.labels), generator=torch.Generator().manual_seed(1))
    labels = dataset.train.labels[order]
    shuffled = dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, labels=labels))
    experiment = resolve_benchmark("digits", method, epochs=1, passes=1, labels_per_class=3)
    for name, data in (("as it is", dataset), ("shuffled", shuffled)):
        fit_benchmark(experiment, tmp_path / name, device="cpu", dataset=data)
    model, _ = Run.open(tmp_path / "as it is").read_tensors("model.safetensors")
    other, _ = Run.open(tmp_path / "shuffled").read_tensors("model.safetensors")
    assert model.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in model.items())


def test_labels_per_class_may_be_none_where_no_label_is_needed(tmp_path: Path) -> None:
    experiment = resolve_benchmark("digits", "triplet", labels_per_class=0)
    with pytest.raises(InputError, match=r"'triplet' needs labels and there is none.*such as 'instance'"):
        fit_benchmark(experiment, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    outcome = fit_benchmark(resolve_benchmark("digits", "rotation", labels_per_class=0, epochs=1), device="cpu")
    assert outcome["epochs"] == 1
