from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from semimetric.core.errors import InputError
from semimetric.core.files import SAFETENSORS_TYPES, read_tensors, tensor_pieces, write_tensors
from semimetric.core.manifest import Manifest

TYPES = [getattr(torch, name.removeprefix("torch.")) for name in SAFETENSORS_TYPES]


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (7 * torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))).to(dtype)


def examples() -> dict[str, torch.Tensor]:
    """Tensors of all types, with none, one and several dimensions, without numbers, not contiguous, and shared."""
    found = {f"{dtype} {shape}": some(dtype, *shape) for dtype in TYPES for shape in ((), (3,), (2, 5), (0, 4))}
    found["turned"] = some(torch.float32, 3, 4).T
    found["a part"] = some(torch.float64, 6, 4)[::2, 1:]
    return found | {"again": found["turned"], 'quoted "ü"': some(torch.int64, 2)}


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    tensors = examples()
    write_tensors(tmp_path / "file", tensors, {"epoch": 3, "names": ["ü", None]})
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].contiguous().flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8)), name
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert json.loads(file.metadata()["state"]) == {"epoch": 3, "names": ["ü", None]}
    assert read_tensors(tmp_path / "file")[1] == {"epoch": 3, "names": ["ü", None]}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_types_are_named_as_the_library_names_them(dtype: torch.dtype) -> None:
    content = save({"x": some(dtype, 3)})
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["x"]["dtype"] == SAFETENSORS_TYPES[str(dtype)]


def test_a_conjugate_is_written_as_what_it_is_and_other_types_are_refused(tmp_path: Path) -> None:
    tensor = some(torch.complex64, 3) * 1j
    write_tensors(tmp_path / "file", {"x": tensor.conj()})
    assert torch.equal(read_tensors(tmp_path / "file")[0]["x"], tensor.conj().resolve_conj())
    with pytest.raises(InputError, match=r"wide has the type torch\.complex128, which no file can hold\. Use one of"):
        tensor_pieces({"wide": some(torch.complex128, 3)})


def test_every_tensor_begins_at_a_multiple_of_its_item() -> None:
    size, text, *_ = tensor_pieces(examples())
    assert int.from_bytes(size, "little") == len(text)
    assert len(text) % 8 == 0
    for name, entry in json.loads(bytes(text)).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % examples()[name].itemsize == 0, name


def test_tensors_are_not_copied() -> None:
    tensor = torch.zeros(4)
    *_, memory = tensor_pieces({"x": tensor})
    tensor[0] = 1.0
    assert bytes(memory)[:4] == torch.ones(1).numpy().tobytes()


def test_a_manifest_lists_a_file_of_several_pieces_as_one(tmp_path: Path) -> None:
    pieces = tensor_pieces(examples(), "state")
    manifest = Manifest(tmp_path)
    manifest.put("file", *pieces)
    manifest.seal()
    content = (tmp_path / "file").read_bytes()
    assert content == b"".join(pieces)
    assert manifest.contents().files["file"] == (len(content), hashlib.sha256(content).hexdigest())
    assert manifest.state("file") == "whole"
