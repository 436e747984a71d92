from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from semimetric.core.errors import InputError
from semimetric.core.files import read_tensors, write_tensors
from semimetric.data import MeanImage, apply_in_chunks, build_preprocess, restore_preprocess

NAMES = ["mean-image", "standardize", "whiten", "imagenet", "none"]


def images(count: int = 60, shape: tuple[int, ...] = (3, 4, 4), seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)


def test_mean_image_leaves_the_range_alone() -> None:
    inputs = images()
    expected = inputs.numpy().astype(np.float64) - inputs.numpy().mean(axis=0)
    np.testing.assert_allclose(build_preprocess("mean-image", inputs)(inputs).numpy(), expected, atol=1e-4)


def test_standardize_vectors_like_scikit_learn_and_constants_become_zero() -> None:
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = inputs * torch.tensor([1.0, 1e-6, 1e3, 0.0]) + torch.tensor([0.0, 0.0, 1e9, 0.1])
    scaled = build_preprocess("standardize", inputs)(inputs)
    np.testing.assert_allclose(scaled[:, :2], StandardScaler().fit_transform(inputs[:, :2]), atol=1e-5)
    np.testing.assert_allclose(scaled[:, 2].std(unbiased=False), 1, atol=1e-4)
    np.testing.assert_allclose(scaled[:, 3], 0, atol=1e-6)


def test_standardize_images_per_channel() -> None:
    inputs = images() // torch.tensor([1, 2, 5], dtype=torch.uint8).reshape(3, 1, 1)
    module = build_preprocess("standardize", inputs)
    scaled = module(inputs)
    assert module.state_dict()["std"].shape == (3, 1, 1)
    np.testing.assert_allclose(scaled.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std((0, 2, 3), unbiased=False), 1, atol=1e-5)


def test_imagenet_scales_by_published_statistics_whatever_the_inputs() -> None:
    inputs = images() // 3
    expected = np.empty(inputs.shape)
    for channel, (mean, std) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
        expected[:, channel] = (inputs[:, channel].numpy() / 255 - mean) / std
    scaled = build_preprocess("imagenet", inputs)(inputs)
    assert scaled.dtype == torch.float32
    np.testing.assert_allclose(scaled, expected, atol=1e-5)
    np.testing.assert_allclose(build_preprocess("imagenet", inputs.double())(inputs.double()), expected, atol=1e-5)
    assert torch.equal(build_preprocess("imagenet", inputs[:1] * 0)(inputs), scaled)


def test_imagenet_refuses_what_is_not_colour_images_of_bytes() -> None:
    for shape in ((1, 4, 4), (4, 4, 4), (3,)):
        with pytest.raises(InputError, match=r"needs RGB images \(N, 3, H, W\)"):
            build_preprocess("imagenet", images(shape=shape))
    for inputs, found in ((images() / 255, "from 0 to 1"), (images() * 2.0, "to 510"), (images() - 128.0, "from -128")):
        with pytest.raises(InputError, match=f"in the range 0 to 255, but .*{found}"):
            build_preprocess("imagenet", inputs)
    with pytest.raises(InputError, match="fitted on"):
        build_preprocess("imagenet", images())(images(shape=(1, 4, 4)))


def contrast_by_loop(inputs: np.ndarray) -> np.ndarray:
    centred = inputs.astype(np.float64) - inputs.astype(np.float64).mean(axis=0)
    rows = [image.ravel() - image.mean() for image in centred]
    stds = [float(np.sqrt((row**2).sum() / (row.size - 1))) for row in rows]
    return np.stack([row * np.mean(stds) / max(40.0, std) for row, std in zip(rows, stds, strict=True)])


def whiten_by_definition(rows: np.ndarray) -> np.ndarray:
    eigenvalues, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    eigenvalues = np.maximum(eigenvalues, 0)
    gains = [np.sqrt(eigenvalues.mean()) / max(np.sqrt(value), 10.0) for value in eigenvalues]
    return rows @ (vectors @ np.diag(gains) @ vectors.T).T


def test_whiten_equals_the_recipe_step_by_step() -> None:
    inputs = images()
    inputs[:20] = inputs[:20] // 8 + 100  # low contrast: these meet the floor of 40
    rows = contrast_by_loop(inputs.numpy())
    norms = rows.std(axis=1, ddof=1)
    assert norms[:20].max() < 0.9 * norms[20:].min()
    whitened = build_preprocess("whiten", inputs)(inputs).flatten(1).numpy()
    np.testing.assert_allclose(whitened, whiten_by_definition(rows), atol=2e-3)


def test_whitened_second_moment_is_a_multiple_of_the_identity() -> None:
    inputs = images(4000, (1, 3, 3))
    module = build_preprocess("whiten", inputs)
    whitened = module(inputs).flatten(1).double()
    energy = np.square(contrast_by_loop(inputs.numpy())).mean()
    no_mean = torch.eye(9) - 1 / 9  # contrast normalisation leaves nothing in the direction of ones
    moment = whitened.T @ whitened / len(whitened)
    np.testing.assert_allclose(moment / energy, no_mean, atol=1e-4)


def test_whiten_refuses_vectors_and_blank_images() -> None:
    with pytest.raises(InputError, match="use 'standardize'"):
        build_preprocess("whiten", torch.zeros(5, 3))
    with pytest.raises(InputError, match="all alike"):
        build_preprocess("whiten", torch.full((5, 1, 2, 2), 7, dtype=torch.uint8))


@pytest.mark.parametrize("name", NAMES)
def test_state_round_trip_through_a_file(name: str, tmp_path: Path) -> None:
    inputs = images()
    fitted = build_preprocess(name, inputs)
    write_tensors(tmp_path / "preprocess.safetensors", fitted.state_dict())
    tensors, _ = read_tensors(tmp_path / "preprocess.safetensors")
    restored = restore_preprocess(name, tensors)
    assert type(restored) is type(fitted)
    assert torch.equal(restored(inputs), fitted(inputs))


@pytest.mark.parametrize("name", NAMES)
def test_chunks_equal_the_whole(name: str) -> None:
    inputs = images()
    module = build_preprocess(name, inputs)
    result = apply_in_chunks(module, inputs, chunk=7)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, module(inputs), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_fitting_in_chunks_equals_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = images()
    whole = build_preprocess(name, inputs).state_dict()
    monkeypatch.setattr("semimetric.data.stored._CHUNK", 7)
    for key, tensor in build_preprocess(name, inputs).state_dict().items():
        torch.testing.assert_close(tensor, whole[key], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_large_examples_are_scaled_few_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = images()
    monkeypatch.setattr("semimetric.data.stored._CHUNK_NUMBERS", 5 * 3 * 4 * 4)
    sizes = []
    module = build_preprocess(name, inputs)
    module.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    result = apply_in_chunks(module, inputs)
    assert sizes == [5] * 12
    torch.testing.assert_close(result, module(inputs), atol=1e-4, rtol=1e-5)
    assert apply_in_chunks(build_preprocess("none", inputs), inputs[:0]).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("name", ["mean-image", "standardize", "whiten"])
def test_other_shapes_are_refused_rather_than_broadcast(name: str) -> None:
    module = build_preprocess(name, images(shape=(1, 4, 4)))
    with pytest.raises(InputError, match="fitted on"):
        module(images(shape=(3, 4, 4)))


def test_unknown_names_foreign_states_and_bad_chunks_are_refused() -> None:
    with pytest.raises(InputError, match="one of mean-image, standardize, whiten, imagenet, none, got 'zca'"):
        build_preprocess("zca", images())
    with pytest.raises(InputError, match=r"made of the tensors \['contrast', 'mean', 'projection'\]"):
        restore_preprocess("whiten", {"mean": torch.zeros(3)})
    with pytest.raises(InputError, match="empty"):
        build_preprocess("mean-image", torch.zeros(0, 3))
    with pytest.raises(InputError, match="chunk must be at least 1"):
        apply_in_chunks(MeanImage(mean=torch.zeros(3)), torch.zeros(2, 3), chunk=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_gpu_agrees_with_cpu(name: str) -> None:
    inputs = images(300)
    expected = build_preprocess(name, inputs)(inputs)
    on_gpu = build_preprocess(name, inputs.cuda())
    torch.testing.assert_close(on_gpu(inputs.cuda()).cpu(), expected, atol=2e-2, rtol=1e-3)
    torch.testing.assert_close(apply_in_chunks(on_gpu, inputs, 64), expected, atol=2e-2, rtol=1e-3)
