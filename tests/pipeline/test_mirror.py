"""Features averaged with those of the mirror image: in the model, in its run, and where they are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command import semimetric
from helpers.own_photos import write_folder
from torch import nn

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.encoders import Mirrored, build_encoder, mirrored
from semimetric.model.folder import load_run
from semimetric.pipeline.benchmark import evaluate_run, fit_benchmark
from semimetric.pipeline.resolve import resolve_benchmark, resolve_own

CPU = torch.device("cpu")
LABELS = np.where(np.arange(60) < 12, np.arange(60) % 3, -1)


def images(count: int = 60) -> np.ndarray:
    """Noise in three colours."""
    generator = np.random.default_rng(0)
    colours = np.eye(3, dtype=np.float32)[np.arange(count) % 3][:, :, None, None]
    return generator.random((count, 3, 12, 12), dtype=np.float32) + colours


def test_it_averages_outside_of_training_alone() -> None:
    network = build_encoder("small-cnn", (3, 12, 12), 0).eval()
    given = torch.from_numpy(images(5))
    both = Mirrored(network).eval()
    with torch.no_grad():
        wanted = (network(given) + network(given.flip(3))) / 2
        assert not torch.allclose(wanted, network(given))
        torch.testing.assert_close(both(given), wanted)
        torch.testing.assert_close(both(given.flip(3)), wanted)
        assert torch.equal(both.train()(given), network(given))


def test_its_state_is_that_of_its_network() -> None:
    network = build_encoder("small-cnn", (3, 12, 12), 0)
    both = nn.Sequential(Mirrored(network))
    assert [*both.state_dict()] == [f"0.{name}" for name in network.state_dict()]
    other = Mirrored(build_encoder("small-cnn", (3, 12, 12), 1))
    other.load_state_dict(network.state_dict())
    assert all(torch.equal(*pair) for pair in zip(other.parameters(), network.parameters(), strict=True))
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({})


@pytest.fixture(scope="module")
def fitted() -> sm.SemiMetric:
    model = sm.SemiMetric(encoder="small-cnn", mirror=True, epochs=2, random_state=0, device="cpu")
    return model.fit(images(), LABELS)


def test_an_image_and_its_mirror_image_have_the_same_embedding(fitted: sm.SemiMetric, tmp_path: Path) -> None:
    found = fitted.transform(images())
    np.testing.assert_allclose(fitted.transform(images()[..., ::-1].copy()), found, atol=1e-5)
    sm.save(fitted, tmp_path / "run")
    again = sm.load(tmp_path / "run")
    assert again.mirror
    assert np.array_equal(again.transform(images()), found)
    assert load_run(tmp_path / "run").fitted.spec.mirror


def test_a_module_of_ones_own_is_mirrored_and_loaded(tmp_path: Path) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 6))
    model = sm.SemiMetric(encoder=own, mirror=True, epochs=2, random_state=0, device="cpu").fit(images(), LABELS)
    sm.save(model, tmp_path / "run")
    again = sm.load(tmp_path / "run", encoder=own)
    assert np.array_equal(again.transform(images()), model.transform(images()))


def test_it_is_refused_without_images() -> None:
    with pytest.raises(InputError, match=r"mirror is for images, got vectors\. Leave it out"):
        resolve_own("vectors", (4,), torch.from_numpy(LABELS), CPU, mirror=True)
    with pytest.raises(InputError, match=r"mirror is for images, got inputs of shape \(7,\)"):
        mirrored(nn.Linear(7, 2), True, (7,))
    with pytest.raises(InputError, match=r"mirror is for a network that is trained, and googlenet-rmac is frozen"):
        resolve_benchmark("cub200", backbone="googlenet-rmac", weights="random", mirror=True)


def test_what_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(InputError, match="mirror must be true or false, got 'no'"):
        sm.SemiMetric(encoder="small-cnn", mirror="no").fit(images(), LABELS)


def test_the_default_gives_way_to_a_backbone() -> None:
    plan = resolve_benchmark("cifar10", backbone="googlenet", encoder="linear", preprocess="none", weights="random")
    assert not plan.network.mirror


def test_a_benchmark_is_evaluated_as_it_was_scored(tmp_path: Path) -> None:
    scores = []
    for mirror in (True, False):
        plan = resolve_benchmark("digits", mirror=mirror, epochs=1, hold_back=0.0)
        outcome = fit_benchmark(plan, tmp_path / str(mirror), device="cpu")
        assert evaluate_run(tmp_path / str(mirror), device="cpu")["scores"] == outcome["final"]
        scores.append(outcome["final"])
    assert scores[0] != scores[1]


def test_benchmarks_of_objects_are_mirrored_and_digits_are_not() -> None:
    assert all(resolve_benchmark(name).network.mirror for name in ("cifar10", "fashion-mnist"))
    assert not any(resolve_benchmark(name).network.mirror for name in ("digits", "mnist"))
    assert not resolve_benchmark("cifar10", "triplet").network.mirror


def test_on_the_command_line(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", 4, 9)
    options = ["--encoder", "small-cnn", "--side", 16, "--epochs", 1, "--device", "cpu"]
    done = semimetric("fit", tmp_path / "photos", "-o", tmp_path / "run", *options, "--mirror")
    assert done.code == 0, done.err
    assert load_run(tmp_path / "run").fitted.spec.mirror
    assert "small-cnn on 16 x 16 pixels (crop), averaged with mirror images" in semimetric("info", tmp_path / "run").out
    again = ["fit", tmp_path / "photos", "-o", tmp_path / "more", "--from", tmp_path / "run", "--device", "cpu"]
    assert semimetric(*again).code == 0
    assert load_run(tmp_path / "more").fitted.spec.mirror
    other = semimetric(*again[:3], tmp_path / "other", *again[4:], "--no-mirror")
    assert "mirror was True and is False" in other.sentence()
