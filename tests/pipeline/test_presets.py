from __future__ import annotations

from typing import get_args

import pytest

import semimetric
from semimetric import training_settings
from semimetric.core.errors import InputError
from semimetric.data import DatasetSpec, register_dataset
from semimetric.data.benchmarks.registry import DATASETS
from semimetric.methods import METHODS
from semimetric.methods.baseline import Baseline
from semimetric.pipeline.plan import Material
from semimetric.pipeline.presets import preset_values
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.training import TrainingSettings

BASELINES = sorted(name for name, kind in METHODS.items() if issubclass(kind, Baseline))


def test_consensus_is_trained_in_its_own_way_and_the_others_as_ever() -> None:
    own = training_settings("consensus")
    assert (own.optimizer, own.lr_schedule, own.selection) == ("adamw", "cosine", "last")
    assert own.average > 0
    assert own.hold_back > 0
    for method in set(METHODS) - {"consensus", "stml"} - set(BASELINES):
        assert training_settings(method) == TrainingSettings()


def test_stml_is_trained_with_an_average_to_learn_from() -> None:
    own = training_settings("stml")
    assert (own.optimizer, own.lr_schedule, own.selection, own.weight_decay) == ("adamw", "cosine", "last", 1e-2)
    assert own.average > 0
    plan = resolve_benchmark("cub200", "stml", weights="googlenet.npz")
    assert (plan.training.lr, plan.training.average, plan.training.selection) == (1e-4, 0.999, "validation")
    assert (plan.network.encoder, plan.method_settings.components) == ("googlenet-avgmax-224", 128)
    assert (plan.method_settings.metric, plan.training.average_warmup) == ("principal", False)
    described = resolve_benchmark("cub200", "stml", weights="googlenet.npz", backbone="googlenet-rmac")
    assert (described.method_settings.metric, described.training.average_warmup) == ("head", True)
    assert (described.network.side, described.network.mirror) == (0, False)


@pytest.mark.parametrize("method", BASELINES)
def test_baselines_share_their_training_and_the_width_of_the_papers_method(method: str) -> None:
    own = training_settings(method)
    assert (own.optimizer, own.lr_schedule, own.selection) == ("adamw", "cosine", "last")
    for dataset, width in (("digits", 32), ("mnist", 64), ("fashion-mnist", 64), ("cifar10", 32)):
        experiment = resolve_benchmark(dataset, method)
        assert experiment.method_settings.components == width
        assert (
            experiment.method_settings.components
            == resolve_benchmark(dataset, "affinity-triplets").method_settings.components
        )
        assert experiment.training.selection == "last"
        assert experiment.pretraining.pretrain_epochs == 0


@pytest.mark.parametrize("method", ["triplet", "instance", "affinity-triplets"])
def test_the_papers_protocol_chooses_on_validation_data_whatever_the_method(method: str) -> None:
    experiment = resolve_benchmark("mnist", method, preset="paper")
    assert (experiment.split.validation_share, experiment.training.selection) == (0.15, "validation")


def test_softmax_training_is_refused_for_a_method_without_labels() -> None:
    with pytest.raises(InputError, match="pretrain_epochs trains with labels, and method 'instance' uses none"):
        resolve_benchmark("cifar10", "instance", pretrain_epochs=3)
    assert resolve_benchmark("cifar10", "triplet", pretrain_epochs=3).pretraining.pretrain_epochs == 3


def test_changes_win() -> None:
    changed = training_settings("consensus", epochs=3, hold_back=0)
    assert (changed.epochs, changed.hold_back, changed.optimizer) == (3, 0.0, "adamw")
    assert training_settings("lrml", lr=0.5).lr == 0.5


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("consenssus", {}, "method must be one of consensus, .*got 'consenssus'"),
        ("consensus", {"epoch": 3}, "training has no setting 'epoch'. Did you mean 'epochs'"),
        ("consensus", {"k": 3}, "training has no setting 'k'"),
        ("consensus", {"epochs": 2.5}, "epochs must be a whole number, got 2.5"),
        ("lrml", {"average": 2.0}, r"average must be in \[0, 1\), got 2.0"),
    ],
)
def test_wrong_names_and_values_are_refused(method: str, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        training_settings(method, **changes)


def test_a_dataset_of_images_is_trained_as_own_data_is() -> None:
    """The presets of consensus are its defaults for own data, but for what the dataset changes."""
    own = training_settings("consensus")
    for dataset in ("digits", "mnist", "fashion-mnist", "cifar10"):
        values = preset_values("default", dataset, "consensus")
        for name in ("optimizer", "lr", "lr_schedule", "weight_decay", "hold_back", "selection", "batch_size"):
            assert values[name] == getattr(own, name), (dataset, name)


def test_it_is_at_the_front_door() -> None:
    assert "training_settings" in semimetric.__all__


def test_the_projection_of_the_paper_starts_uniform() -> None:
    starts = {
        name: resolve_benchmark("cub200", "affinity-triplets", preset=name).method_settings.start
        for name in ("paper", "default")
    }
    assert starts == {"paper": "uniform", "default": "classes"}


@pytest.mark.parametrize("method", BASELINES)
def test_baselines_on_photographs_take_small_steps(method: str) -> None:
    training = resolve_benchmark("cub200", method, weights="googlenet.npz").training
    assert training.lr <= 3e-5
    assert training.selection == "validation"


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_papers_preset_is_for_methods_of_the_paper(method: str) -> None:
    if METHODS[method].in_paper:
        assert resolve_benchmark("mnist", method, preset="paper").method == method
        return
    with pytest.raises(InputError, match=f"preset 'paper' has no settings for method '{method}'"):
        resolve_benchmark("mnist", method, preset="paper")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_defaults_are_of_known_materials_and_datasets(method: str) -> None:
    known = {*get_args(Material), *DATASETS, "described"}
    assert METHODS[method].defaults_on.keys() <= known


def test_a_dataset_from_outside_may_have_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_loaded", dict(DATASETS._loaded))
    own = {"encoder": "small-cnn", "labels_per_class": 3}
    register_dataset(DatasetSpec(name="plain", summary="no presets", read=tuple))
    register_dataset(DatasetSpec(name="known", summary="a preset", read=tuple, presets={"default": own}))
    assert preset_values("default", "plain", "lrml") == {}
    assert preset_values("default", "known", "lrml") == own
    for name in ("plain", "known"):
        sentence = f"preset 'paper' has no settings for dataset '{name}'; it has them for digits, mnist, "
        with pytest.raises(InputError, match=sentence):
            resolve_benchmark(name, "lrml", preset="paper")
