from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers.transformers import NAME, WIDTH, stand_in, write_snapshot
from safetensors.torch import load_file, save_file

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import read_tensors, write_tensors
from semimetric.encoders import build_encoder, encode, output_width, rebuild_encoder

SHAPE = (3, 64, 64)
PIXELS = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))
MEAN, STD = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
IMAGES = (PIXELS - MEAN) / STD


def test_a_snapshot_is_loaded_without_network_or_foreign_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = stand_in(monkeypatch)
    weights, model = write_snapshot(tmp_path / "snapshot", pooled=True)
    before = torch.get_rng_state()
    encoder = build_encoder(NAME, SHAPE, seed=0, weights=weights).eval()
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(encoder(IMAGES), model(IMAGES).pooler_output)
    assert output_width(encoder, IMAGES) == WIDTH
    (given,) = asked
    assert given["local_files_only"] is True
    assert given["trust_remote_code"] is False
    assert given["use_safetensors"] is True


def test_without_a_pooler_the_tokens_are_averaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    weights, model = write_snapshot(tmp_path / "snapshot")
    encoder = build_encoder(NAME, SHAPE, seed=0, weights=str(weights)).eval()
    assert torch.equal(encoder(IMAGES), model(IMAGES).last_hidden_state.mean(1))


def test_a_pooler_that_was_never_trained_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    weights, model = write_snapshot(tmp_path / "snapshot", pooled=True)
    save_file({name: t for name, t in load_file(weights).items() if "pooler" not in name}, weights)
    encoder = build_encoder(NAME, SHAPE, seed=0, weights=weights).eval()
    expected = model(IMAGES).last_hidden_state.mean(1)
    assert torch.equal(encoder(IMAGES), expected)
    again = rebuild_encoder(NAME, SHAPE, encoder.state_dict()).eval()
    assert torch.equal(again(IMAGES), expected)


def test_images_reach_it_by_the_statistics_of_the_snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    theirs = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
    weights, model = write_snapshot(tmp_path / "snapshot", theirs)
    encoder = build_encoder(NAME, SHAPE, seed=0, weights=weights).eval()
    mean, std = (torch.tensor(values)[:, None, None] for values in theirs.values())
    expected = model((PIXELS - mean) / std).last_hidden_state.mean(1)
    torch.testing.assert_close(encoder(IMAGES), expected, atol=1e-5, rtol=1e-4)
    again = rebuild_encoder(NAME, SHAPE, encoder.state_dict()).eval()
    assert torch.equal(again(IMAGES), encoder(IMAGES))


def test_a_run_has_it_back_without_the_snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    weights, _ = write_snapshot(tmp_path / "snapshot", pooled=True, dtype="bfloat16")
    encoder = build_encoder(NAME, SHAPE, seed=0, weights=weights)
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    expected = encode(encoder, IMAGES)
    write_tensors(tmp_path / "run.safetensors", dict(encoder.state_dict()))
    shutil.rmtree(weights.parent)
    tensors, _ = read_tensors(tmp_path / "run.safetensors")
    before = torch.get_rng_state()
    again = rebuild_encoder(NAME, SHAPE, tensors)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(encode(again, IMAGES), expected)
    torch.testing.assert_close(encode(again.double(), IMAGES.double()).float(), expected)


def test_what_another_version_cannot_build_is_said_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch)
    weights, _ = write_snapshot(tmp_path / "snapshot")
    state = build_encoder(NAME, SHAPE, seed=0, weights=weights).state_dict()
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "10.0")
    renamed = {name.replace("patches", "embedder"): tensor for name, tensor in state.items()}
    with pytest.raises(RunError, match=r"stored by transformers 9\.1, and transformers 10\.0 cannot .*embedder"):
        rebuild_encoder(NAME, SHAPE, renamed)


def test_snapshots_that_will_not_do_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    with pytest.raises(
        InputError, match=r"needs as weights the file model\.safetensors .*got none.*hf download someone/"
    ):
        build_encoder(NAME, SHAPE, 0)
    with pytest.raises(InputError, match=r"model\.safetensors in its snapshot folder.*got .*other\.safetensors"):
        build_encoder(NAME, SHAPE, 0, weights=tmp_path / "other.safetensors")
    words, _ = write_snapshot(tmp_path / "words", model_type="words")
    with pytest.raises(InputError, match="not a network of images alone"):
        build_encoder(NAME, SHAPE, 0, weights=words)
    weights, _ = write_snapshot(tmp_path / "lacking")
    save_file({name: t for name, t in load_file(weights).items() if "bias" not in name}, weights)
    with pytest.raises(InputError, match=r"lack 1 of the network's tensors, first 'patches\.bias'"):
        build_encoder(NAME, SHAPE, 0, weights=weights)
    weights, _ = write_snapshot(tmp_path / "nan")
    save_file({name: torch.full_like(t, torch.nan) for name, t in load_file(weights).items()}, weights)
    with pytest.raises(InputError, match="NaN or infinite"):
        build_encoder(NAME, SHAPE, 0, weights=weights)
    weights.write_bytes(b"cut off")
    with pytest.raises(InputError, match=r"snapshot .*nan cannot be loaded by transformers"):
        build_encoder(NAME, SHAPE, 0, weights=weights)
    (weights.parent / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json cannot be read.*Fetch the snapshot again"):
        build_encoder(NAME, SHAPE, 0, weights=weights)


def test_images_of_the_wrong_size_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    weights, _ = write_snapshot(tmp_path / "snapshot", only=224)
    encoder = build_encoder(NAME, SHAPE, seed=0, weights=weights)
    with pytest.raises(InputError, match=r"images of shape \(3, 64, 64\): Input image size .*224.* Bring photographs"):
        encoder(IMAGES)


def test_the_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"needs the package transformers.*pip install 'semimetric\[transformers\]'"):
        build_encoder(NAME, SHAPE, 0)


def test_a_real_model_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=56)
    torch.manual_seed(0)
    theirs = transformers.Dinov2Model(config).eval()
    theirs.save_pretrained(tmp_path)
    encoder = build_encoder("transformers:me/dinov2", (3, 84, 84), 0, weights=tmp_path / "model.safetensors").eval()
    images = torch.randn(2, 3, 84, 84)
    expected = theirs(pixel_values=images).pooler_output
    torch.testing.assert_close(encoder(images), expected)
    torch.testing.assert_close(
        rebuild_encoder("transformers:me/dinov2", (3, 84, 84), encoder.state_dict())(images), expected
    )
