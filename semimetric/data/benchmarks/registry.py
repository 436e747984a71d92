"""The benchmark datasets: what they are, where they may be, and how to load them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from semimetric.core.errors import DataError, InputError
from semimetric.data.benchmarks.fine_grained import CARS196, CUB200, Count, PhotoBenchmark, Photographs
from semimetric.data.examples import Dataset, Examples
from semimetric.data.photographs.images import Fit
from semimetric.data.readers.cifar import cifar_variants, load_cifar
from semimetric.data.readers.idx import idx_variants, load_idx

DATA_VARIABLE = "SEMIMETRIC_DATA"
INSIDE_SKLEARN = "inside scikit-learn"


@dataclass(frozen=True)
class Benchmark:
    """What is known of a benchmark dataset in a few official files before it is loaded, and how to load it.

    ``checksums`` maps each official file to the SHA-256 of its uncompressed content; ``variants`` gives the
    relative paths under which such a file may lie; ``read`` reads a folder against the checksums.
    """

    name: str
    summary: str
    train_size: int
    test_size: int
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    checksums: Mapping[str, str]
    variants: Callable[[str], tuple[str, ...]]
    read: Callable[[Path, Mapping[str, str]], tuple[Examples, Examples]]
    shared_folders: tuple[Path, ...] = ()

    source = None

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def needs_folder(self) -> bool:
        """Whether there are files to look for."""
        return bool(self.checksums)

    @property
    def remedy(self) -> str:
        """How to get the dataset."""
        return f"Get it with `semimetric datasets fetch {self.name}`"

    def missing_from(self, folder: Path) -> tuple[str, ...] | None:
        """Return the official files that ``folder`` lacks; None if it has none of them."""
        missing = tuple(
            name for name in self.checksums if not any((folder / variant).is_file() for variant in self.variants(name))
        )
        return None if len(missing) == len(self.checksums) else missing

    def check_options(self, side: int | None, fit: Fit, workers: int | None) -> None:
        """Refuse options for photographs: these images have one size."""
        if side is not None or fit != "crop":
            given = f"side={side}" if side is not None else f"fit={fit!r}"
            size = "x".join(map(str, self.shape))
            raise InputError(f"{given} is for datasets of photographs; the images of {self.name!r} are {size}.")

    def load(
        self, folder: Path, side: int | None, fit: Fit, workers: int | None, progress: Count | None = None
    ) -> Dataset:
        """Read all examples, refusing what is not as published; it is done before there is progress to tell."""
        self.check_options(side, fit, workers)
        try:
            train, test = self.read(folder, self.checksums)
        except DataError as error:
            raise DataError(
                f"{error} Remove that copy and get a good one with `semimetric datasets fetch {self.name}`."
            ) from error
        return Dataset(self.name, train, test, self.class_names)


@dataclass(frozen=True)
class DatasetListing:
    """One line of a listing. ``found`` is a folder, 'inside scikit-learn' or None; ``missing`` what it lacks.

    ``source`` is the web page from which people must get it themselves; None where ``fetch_dataset`` does it.
    """

    name: str
    summary: str
    train_size: int
    test_size: int
    classes: int
    shape: tuple[int, ...]
    found: str | None
    missing: tuple[str, ...]
    source: str | None


def _load_digits(folder: Path, checksums: Mapping[str, str]) -> tuple[Examples, Examples]:
    """Load scikit-learn's digits; every third example of a class is a test example, whatever the seed."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    labels = torch.from_numpy(digits.target.astype(np.int64))
    examples = Examples(torch.from_numpy(digits.images.astype(np.uint8)).unsqueeze(1), labels)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(len(_DIGIT_NAMES)):
        is_test[(labels == label).nonzero().squeeze(1)[2::3]] = True
    return examples.subset((~is_test).nonzero().squeeze(1)), examples.subset(is_test.nonzero().squeeze(1))


_DIGIT_NAMES = tuple(str(digit) for digit in range(10))

_BENCHMARKS: tuple[Benchmark | PhotoBenchmark, ...] = (
    Benchmark(
        name="digits",
        summary="handwritten digits, small (values 0 to 16)",
        train_size=1201,
        test_size=596,
        shape=(1, 8, 8),
        class_names=_DIGIT_NAMES,
        checksums=MappingProxyType({}),
        variants=lambda name: (),
        read=_load_digits,
    ),
    Benchmark(
        name="mnist",
        summary="handwritten digits",
        train_size=60_000,
        test_size=10_000,
        shape=(1, 28, 28),
        class_names=_DIGIT_NAMES,
        checksums=MappingProxyType(
            {
                "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            }
        ),
        variants=idx_variants,
        read=load_idx,
    ),
    Benchmark(
        name="fashion-mnist",
        summary="pictures of clothes",
        train_size=60_000,
        test_size=10_000,
        shape=(1, 28, 28),
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        checksums=MappingProxyType(
            {
                "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            }
        ),
        variants=idx_variants,
        read=load_idx,
        shared_folders=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
    ),
    Benchmark(
        name="cifar10",
        summary="small colour photographs of animals and vehicles",
        train_size=50_000,
        test_size=10_000,
        shape=(3, 32, 32),
        class_names=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        checksums=MappingProxyType(
            {
                "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            }
        ),
        variants=cifar_variants,
        read=load_cifar,
    ),
    CUB200,
    CARS196,
)


def dataset_names() -> tuple[str, ...]:
    """Return the names that ``load_dataset`` knows."""
    return tuple(benchmark.name for benchmark in _BENCHMARKS)


def find_benchmark(name: str) -> Benchmark | PhotoBenchmark:
    """Look a benchmark up by name."""
    for benchmark in _BENCHMARKS:
        if benchmark.name == name:
            return benchmark
    close = difflib.get_close_matches(name.lower(), dataset_names(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise InputError(f"There is no dataset {name!r}; the known ones are {', '.join(dataset_names())}{hint}")


def check_dataset(name: str) -> None:
    """Refuse a name that ``load_dataset`` does not know, suggesting the nearest."""
    find_benchmark(name)


def base_folders(data_dir: Path | str | None) -> list[Path]:
    """Return the folders that hold datasets, in the order of lookup: given, environment, user cache."""
    named = [data_dir, os.environ.get(DATA_VARIABLE)]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*(Path(folder).expanduser() for folder in named if folder), Path(cache) / "semimetric"]


def _places(benchmark: Benchmark | PhotoBenchmark, data_dir: Path | str | None) -> list[Path]:
    *named, cache = base_folders(data_dir)
    others = set(dataset_names()) - {benchmark.name}  # MNIST's files and Fashion-MNIST's have the same names
    inside_named = [
        place for folder in named for place in (folder / benchmark.name, folder) if place.name not in others
    ]
    return [*inside_named, cache / benchmark.name, *benchmark.shared_folders]


def _locate(benchmark: Benchmark | PhotoBenchmark, data_dir: Path | str | None) -> Path | None:
    """Return the first place with the whole dataset, else the first with a part of it, else None."""
    missing = {place: benchmark.missing_from(place) for place in _places(benchmark, data_dir)}
    found = [place for place in missing if missing[place] is not None]
    return min(found, key=lambda place: missing[place] != (), default=None)


def describe_datasets(data_dir: Path | str | None = None) -> list[DatasetListing]:
    """List every dataset and where it is, by the presence of its files alone (loading checks the content)."""
    return [_describe(benchmark, data_dir) for benchmark in _BENCHMARKS]


def _describe(benchmark: Benchmark | PhotoBenchmark, data_dir: Path | str | None) -> DatasetListing:
    folder = _locate(benchmark, data_dir) if benchmark.needs_folder else None
    nowhere = None if benchmark.needs_folder else INSIDE_SKLEARN
    return DatasetListing(
        name=benchmark.name,
        summary=benchmark.summary,
        train_size=benchmark.train_size,
        test_size=benchmark.test_size,
        classes=benchmark.classes,
        shape=benchmark.shape,
        found=str(folder) if folder else nowhere,
        missing=(benchmark.missing_from(folder) if folder else None) or (),
        source=benchmark.source,
    )


def load_dataset(
    name: str,
    data_dir: Path | str | None = None,
    side: int | None = None,
    fit: Fit = "crop",
    workers: int | None = None,
    progress: Count | None = None,
) -> Dataset:
    """Load a benchmark dataset as uint8 images.

    Its folder is looked for in ``data_dir`` (as ``data_dir/name`` or ``data_dir`` itself), in the folder that
    the environment variable SEMIMETRIC_DATA names (likewise) and in the user cache. Each file's content must
    have the published SHA-256; a file that has not is never used.

    Photographs have no published SHA-256: a ``DataWarning`` says which are missing or cannot be decoded. All are
    held in memory, N * 3 * side**2 bytes: 2.3 GB for the 11,788 of cub200 at side 256.

    Parameters
    ----------
    side, fit : optional
        To which size photographs are brought, and how (see ``decode_image``); 256 unless given. Other datasets
        have their own size and refuse them.
    workers : int, optional
        Threads that decode photographs; one per processor unless given.
    progress : callable, optional
        Called after each photograph with how many are done, of how many.
    """
    benchmark = find_benchmark(name)
    benchmark.check_options(side, fit, workers)
    folder = _folder_of(benchmark, data_dir) if benchmark.needs_folder else Path()
    return benchmark.load(folder, side, fit, workers, progress)


def photograph_side(name: str, side: int = 0) -> int:
    """The side to which photographs of a dataset are brought, ``side`` unless that is 0; 0 where it has none."""
    benchmark = find_benchmark(name)
    return (side or benchmark.side) if isinstance(benchmark, PhotoBenchmark) else 0


def find_photographs(name: str, data_dir: Path | str | None = None) -> Photographs | None:
    """List the photographs of a dataset where ``load_dataset`` finds them, and decode none.

    None if it is not a dataset of photographs.
    """
    benchmark = find_benchmark(name)
    return benchmark.photographs(_folder_of(benchmark, data_dir)) if isinstance(benchmark, PhotoBenchmark) else None


def _folder_of(benchmark: Benchmark | PhotoBenchmark, data_dir: Path | str | None) -> Path:
    folder = _locate(benchmark, data_dir)
    if folder is None:
        places = ", ".join(str(place) for place in _places(benchmark, data_dir))
        raise DataError(
            f"Dataset {benchmark.name!r} was not found in any of: {places}. {benchmark.remedy}, or name the folder "
            f"that holds it with --data-dir or {DATA_VARIABLE}."
        )
    return folder
