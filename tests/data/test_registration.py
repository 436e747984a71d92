"""Datasets of other code: registered by a call, or offered by an installed package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import semimetric as sm
from semimetric.core.errors import DataError, InputError
from semimetric.data import FileSpec, dataset_names, describe_datasets, fetch_dataset, load_dataset
from semimetric.data.benchmarks.registry import DATASETS
from semimetric.data.readers.idx import idx_variants, load_idx, read_content


def read_blobs() -> tuple[sm.Examples, sm.Examples]:
    labels = torch.arange(12) % 3
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)) + labels[:, None]
    return sm.Examples(inputs[:9], labels[:9]), sm.Examples(inputs[9:], labels[9:])


@pytest.fixture(autouse=True)
def _registered_for_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_loaded", dict(DATASETS._loaded))


def test_a_function_becomes_a_dataset() -> None:
    spec = sm.register_dataset(sm.DatasetSpec(name="blobs", summary="three blobs", read=read_blobs))
    assert DATASETS["blobs"] is spec
    assert dataset_names()[-1] == "blobs"
    loaded = load_dataset("blobs")
    assert (loaded.name, len(loaded.train), len(loaded.test)) == ("blobs", 9, 3)
    assert loaded.class_names == ("0", "1", "2")
    assert torch.equal(loaded.train.inputs, read_blobs()[0].inputs)
    listing = describe_datasets()[-1]
    assert (listing.name, listing.summary, listing.found) == ("blobs", "three blobs", "inside its package")
    with pytest.raises(InputError, match="nothing to fetch for 'blobs'"):
        fetch_dataset("blobs")
    with pytest.raises(InputError, match="side=8 is for datasets of photographs"):
        load_dataset("blobs", side=8)


def test_a_name_is_given_once() -> None:
    taken = sm.DatasetSpec(name="mnist", summary="another", read=read_blobs)
    with pytest.raises(InputError, match="'mnist' already"):
        sm.register_dataset(taken)


def test_official_files_become_a_dataset(tiny_idx) -> None:
    checks = {"checksums": tiny_idx.checksums, "variants": idx_variants, "content": read_content, "read": load_idx}
    sm.register_dataset(FileSpec(name="tiny", summary="tiny", class_names=("a", "b", "c"), **checks))
    loaded = load_dataset("tiny", tiny_idx.folder.parent)
    assert (len(loaded.train), len(loaded.test), loaded.class_names) == (6, 4, ("a", "b", "c"))
    with pytest.raises(InputError, match="'tiny' has no address to fetch from"):
        fetch_dataset("tiny", tiny_idx.folder.parent)
    (tiny_idx.folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(DataError, match="`semimetric datasets fetch tiny`"):
        load_dataset("tiny", tiny_idx.folder.parent)


PACKAGE = """
import torch
from semimetric import DatasetSpec, Examples

def read():
    examples = Examples(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    return examples, examples

EYE = DatasetSpec(name="eye", summary="unit vectors", read=read, class_names=("low", "high"))
"""


def test_an_installed_package_offers_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(PACKAGE)
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[semimetric.datasets]\neye = outside:EYE\n")
    program = (
        "import sys; from semimetric.data import dataset_names, load_dataset; print(dataset_names()[-1]); "
        "assert 'outside' not in sys.modules; found = load_dataset('eye'); print(len(found.train), *found.class_names)"
    )
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["eye", "4", "low", "high"], done.stderr


@pytest.mark.parametrize("module", ["readers.read", "readers.idx", "readers.cifar", "labels", "collection"])
def test_readers_and_listings_do_without_torch(module: str) -> None:
    heavy = ("torch", "numpy", "scipy", "sklearn", "pandas", "pyarrow")
    program = (
        f"import sys, semimetric.data.{module}; from semimetric.data import describe_datasets; describe_datasets(); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
