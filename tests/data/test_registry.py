import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from semimetric.core.errors import DataError, InputError
from semimetric.data import Dataset, dataset_names, describe_datasets, load_dataset
from semimetric.data.benchmarks.registry import DATASETS


@pytest.fixture(autouse=True)
def only_tiny_data(
    request: pytest.FixtureRequest, tiny_idx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give every idx dataset the tiny checksums and no folder outside the test, save for tests of real data."""
    if request.node.get_closest_marker("data"):
        return
    monkeypatch.delenv("SEMIMETRIC_DATA", raising=False)
    for name in ("mnist", "fashion-mnist"):
        tiny = dataclasses.replace(DATASETS[name], checksums=tiny_idx.checksums, shared_folders=(tmp_path / "shared",))
        monkeypatch.setitem(DATASETS._loaded, name, tiny)


def test_digits_have_a_fixed_stratified_split() -> None:
    digits = load_dataset("digits")
    assert digits.train.inputs.shape == (1201, 1, 8, 8)
    assert digits.test.inputs.shape == (596, 1, 8, 8)
    assert digits.train.inputs.dtype == torch.uint8
    assert int(digits.train.inputs.max()) == 16
    counts = digits.train.labels.bincount() + digits.test.labels.bincount()
    assert (digits.test.labels.bincount() - counts / 3).abs().max() < 1
    assert torch.equal(load_dataset("digits").test.inputs, digits.test.inputs)


def test_digits_keep_each_label_with_its_image() -> None:
    digits = load_dataset("digits")
    train, test = digits.train.inputs.flatten(1).float(), digits.test.inputs.flatten(1).float()
    guesses = digits.train.labels[torch.cdist(test, train).argmin(1)]
    assert (guesses == digits.test.labels).float().mean() > 0.95


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"cub200, cars196.*, got .*Did you mean 'cifar10'\?") as caught:
        load_dataset("CIFAR-10")
    assert "'CIFAR-10'" in str(caught.value)
    with pytest.raises(InputError, match=rf"one of {', '.join(dataset_names())}, got 'zzz'\.$"):
        load_dataset("zzz")


def move_to(tiny_idx: Any, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return tiny_idx.folder.rename(target)


def found_of(name: str, data_dir: Path | None = None) -> str | None:
    return next(listing.found for listing in describe_datasets(data_dir) if listing.name == name)


@pytest.mark.parametrize("inside", ["mnist", ""])
@pytest.mark.parametrize("given", [True, False])
def test_found_in_the_given_folder_and_in_the_environment(
    tiny_idx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, given: bool
) -> None:
    folder = move_to(tiny_idx, tmp_path / "base" / inside)
    if not given:
        monkeypatch.setenv("SEMIMETRIC_DATA", str(tmp_path / "base"))
    data_dir = str(tmp_path / "base") if given else None
    assert len(load_dataset("mnist", data_dir).train) == 6
    assert found_of("mnist", tmp_path / "base" if given else None) == str(folder)


def test_found_in_the_cache(tiny_idx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = move_to(tiny_idx, tmp_path / "xdg" / "semimetric" / "mnist")
    assert len(load_dataset("mnist").train) == 6
    assert found_of("mnist") == str(folder)


def test_found_in_the_cache_of_the_home_folder(tiny_idx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = move_to(tiny_idx, tmp_path / "home" / ".cache" / "semimetric" / "mnist")
    assert found_of("mnist") == str(folder)


def test_found_in_a_shared_folder(tiny_idx: Any, tmp_path: Path) -> None:
    folder = move_to(tiny_idx, tmp_path / "shared")
    assert found_of("fashion-mnist") == str(folder)


def test_a_folder_named_after_another_dataset_is_not_taken(tiny_idx: Any, tmp_path: Path) -> None:
    folder = move_to(tiny_idx, tmp_path / "mnist")
    assert found_of("mnist", folder) == str(folder)
    assert found_of("fashion-mnist", folder) is None


def test_not_found_lists_every_place_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIMETRIC_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with pytest.raises(DataError) as caught:
        load_dataset("cifar10", tmp_path / "given")
    message = str(caught.value)
    for place in ("given/cifar10", "given", "env/cifar10", "env", "xdg/semimetric/cifar10"):
        assert f"{tmp_path / place}," in message or f"{tmp_path / place}." in message
    assert "`semimetric datasets fetch cifar10`" in message


def test_an_incomplete_folder_is_named_with_what_it_lacks(tiny_idx: Any, tmp_path: Path) -> None:
    folder = move_to(tiny_idx, tmp_path / "base" / "mnist")
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    listing = describe_datasets(tmp_path / "base")[1]
    assert (listing.found, listing.missing) == (str(folder), ("train-labels-idx1-ubyte",))
    with pytest.raises(DataError, match=r"lacks train-labels-idx1-ubyte.*`semimetric datasets fetch mnist`"):
        load_dataset("mnist", tmp_path / "base")


def test_a_whole_copy_goes_before_an_incomplete_one(tiny_idx: Any, tmp_path: Path) -> None:
    whole = move_to(tiny_idx, tmp_path / "base")
    (whole / "mnist").mkdir()
    (whole / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"half")
    assert found_of("mnist", whole) == str(whole)


def test_the_listing_agrees_with_the_names() -> None:
    listings = describe_datasets()
    assert tuple(listing.name for listing in listings) == dataset_names()
    digits = listings[0]
    assert (digits.found, digits.train_size, digits.test_size) == ("inside scikit-learn", 1201, 596)
    assert (digits.classes, digits.shape, digits.missing) == (10, (1, 8, 8), ())


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_official_files_load(name: str, benchmark_data: Callable[[str], Dataset]) -> None:
    dataset = benchmark_data(name)
    listing = next(listing for listing in describe_datasets() if listing.name == name)
    assert dataset.train.inputs.shape == (listing.train_size, *listing.shape)
    assert dataset.test.inputs.shape == (listing.test_size, *listing.shape)
    assert dataset.train.inputs.dtype == torch.uint8
    assert len(dataset.class_names) == listing.classes == len(dataset.test.labels.unique())


@pytest.mark.data
def test_mnist_is_counted_as_published(benchmark_data: Callable[[str], Dataset]) -> None:
    counts = benchmark_data("mnist").train.labels.bincount().tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.data
def test_cifar_planes_are_red_green_blue(benchmark_data: Callable[[str], Dataset]) -> None:
    means = benchmark_data("cifar10").train.inputs.float().mean((0, 2, 3))
    torch.testing.assert_close(means, torch.tensor([125.3, 123.0, 113.9]), atol=0.1, rtol=0)
