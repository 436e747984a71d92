from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from semimetric.core.errors import InputError
from semimetric.encoders import RMAC, GoogLeNet, build_encoder, encode, load_googlenet, output_width, rebuild_encoder
from semimetric.encoders.googlenet import ResponseNorm, Unit, _sums_of_near_channels

INCEPTIONS = {  # the paper's Table 1: channels in; 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool projection
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def he(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator) * (2 / (shape[1] * shape[2] * shape[3])) ** 0.5


def bvlc_weights(seed: int) -> dict[str, Tensor]:
    """Random weights under the names and in the shapes of BVLC's network, classifiers and all."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv1/7x7_s2": (64, 3, 7), "conv2/3x3_reduce": (64, 64, 1), "conv2/3x3": (192, 64, 3)}
    for name, (channels, one, three_in, three, five_in, five, pool) in INCEPTIONS.items():
        shapes |= {
            f"inception_{name}/1x1": (one, channels, 1),
            f"inception_{name}/3x3_reduce": (three_in, channels, 1),
            f"inception_{name}/3x3": (three, three_in, 3),
            f"inception_{name}/5x5_reduce": (five_in, channels, 1),
            f"inception_{name}/5x5": (five, five_in, 5),
            f"inception_{name}/pool_proj": (pool, channels, 1),
        }
    tensors = {"loss3/classifier.w": torch.zeros(1000, 1024), "loss3/classifier.b": torch.zeros(1000)}
    for name, (out, channels, kernel) in shapes.items():
        tensors[f"{name}.w"] = he(generator, out, channels, kernel, kernel)
        tensors[f"{name}.b"] = 0.1 * torch.randn(out, generator=generator)
    return tensors


def bvlc_maps(tensors: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """Caffe's network, step by step, of RGB pixels in 0..255."""

    def conv(maps: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        return functional.conv2d(maps, tensors[f"{name}.w"], tensors[f"{name}.b"], stride, padding).clamp(min=0)

    blue_green_red = torch.stack([pixels[:, 2] - 104, pixels[:, 1] - 117, pixels[:, 0] - 123], 1)
    maps = conv(blue_green_red, "conv1/7x7_s2", 2, 3)
    maps = response_norm(caffe_pool(maps, 3))
    maps = conv(conv(maps, "conv2/3x3_reduce"), "conv2/3x3", 1, 1)
    maps = caffe_pool(response_norm(maps), 3)
    for name in INCEPTIONS:
        if name in ("4a", "5a"):
            maps = caffe_pool(maps, 3)
        at = f"inception_{name}"
        three = conv(conv(maps, f"{at}/3x3_reduce"), f"{at}/3x3", 1, 1)
        five = conv(conv(maps, f"{at}/5x5_reduce"), f"{at}/5x5", 1, 2)
        pool = conv(functional.max_pool2d(maps, 3, 1, 1), f"{at}/pool_proj")
        maps = torch.cat([conv(maps, f"{at}/1x1"), three, five, pool], 1)
    return maps


def response_norm(maps: Tensor) -> Tensor:
    """1 + 1e-4 / 5 times the sum of squares over five channels, cut at the first and the last, to the power 0.75."""
    result = torch.empty_like(maps)
    for channel in range(maps.shape[1]):
        around = maps[:, max(channel - 2, 0) : channel + 3]
        result[:, channel] = maps[:, channel] / (1 + 1e-4 / 5 * around.square().sum(1)) ** 0.75
    return result


def caffe_pool(maps: Tensor, kernel: int) -> Tensor:
    """Maxima of windows at every second position; what reaches over the border counts as nothing."""
    height, width = (-((kernel - length) // 2) + 1 for length in maps.shape[2:])  # rounds (length - kernel) / 2 up
    padded = functional.pad(maps, (0, 2, 0, 2), value=-torch.inf)
    rows = [
        torch.stack(
            [padded[:, :, 2 * i : 2 * i + kernel, 2 * j : 2 * j + kernel].amax((2, 3)) for j in range(width)], 2
        )
        for i in range(height)
    ]
    return torch.stack(rows, 2)


def torchvision_weights(seed: int) -> dict[str, Tensor]:
    """A random state_dict with the names and shapes of torchvision's GoogLeNet, auxiliary heads and all."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv1": (64, 3, 7), "conv2": (64, 64, 1), "conv3": (192, 64, 3)}
    for name, (channels, one, three_in, three, five_in, five, pool) in INCEPTIONS.items():
        shapes |= {
            f"inception{name}.branch1": (one, channels, 1),
            f"inception{name}.branch2.0": (three_in, channels, 1),
            f"inception{name}.branch2.1": (three, three_in, 3),
            f"inception{name}.branch3.0": (five_in, channels, 1),
            f"inception{name}.branch3.1": (five, five_in, 3),
            f"inception{name}.branch4.1": (pool, channels, 1),
        }
    shapes |= {"aux1.conv": (128, 512, 1), "aux2.conv": (128, 528, 1)}
    tensors = {"fc.weight": torch.zeros(1000, 1024), "fc.bias": torch.zeros(1000)}
    for name, (out, channels, kernel) in shapes.items():
        tensors[f"{name}.conv.weight"] = he(generator, out, channels, kernel, kernel)
        tensors[f"{name}.bn.weight"] = 1 + 0.2 * torch.randn(out, generator=generator)
        tensors[f"{name}.bn.bias"] = 0.2 * torch.randn(out, generator=generator)
        tensors[f"{name}.bn.running_mean"] = 0.2 * torch.randn(out, generator=generator)
        tensors[f"{name}.bn.running_var"] = 0.5 + torch.rand(out, generator=generator)
        tensors[f"{name}.bn.num_batches_tracked"] = torch.tensor(7)
    return tensors


def torchvision_maps(tensors: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """torchvision's network in evaluation mode, step by step, of RGB pixels in 0..255."""

    def conv(maps: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        maps = functional.conv2d(maps, tensors[f"{name}.conv.weight"], None, stride, padding)
        weight, bias, mean, var = (
            tensors[f"{name}.bn.{value}"][:, None, None] for value in ("weight", "bias", "running_mean", "running_var")
        )
        return ((maps - mean) / (var + 0.001).sqrt() * weight + bias).clamp(min=0)

    maps = caffe_pool(conv(pixels / 127.5 - 1, "conv1", 2, 3), 3)
    maps = caffe_pool(conv(conv(maps, "conv2"), "conv3", 1, 1), 3)
    for name in INCEPTIONS:
        if name in ("4a", "5a"):
            maps = caffe_pool(maps, 3 if name == "4a" else 2)
        at = f"inception{name}"
        three = conv(conv(maps, f"{at}.branch2.0"), f"{at}.branch2.1", 1, 1)
        five = conv(conv(maps, f"{at}.branch3.0"), f"{at}.branch3.1", 1, 1)
        pool = conv(functional.max_pool2d(maps, 3, 1, 1), f"{at}.branch4.1")
        maps = torch.cat([conv(maps, f"{at}.branch1"), three, five, pool], 1)
    return maps


def photographs(seed: int, height: int, width: int, count: int = 2) -> tuple[Tensor, Tensor]:
    """Pixels in 0..255, smooth as photographs are, and the same normalised as encoders expect them."""
    coarse = 255 * torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    pixels = functional.interpolate(coarse, (height, width), mode="bilinear")
    return pixels, (pixels / 255 - MEAN[:, None, None]) / STD[:, None, None]


def write_npz(path: Path, tensors: dict[str, Tensor]) -> Path:
    np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    return path


@pytest.mark.parametrize(("height", "width"), [(64, 64), (65, 96)])
def test_it_computes_what_caffe_computes(tmp_path: Path, height: int, width: int) -> None:
    tensors = bvlc_weights(0)
    network = load_googlenet(write_npz(tmp_path / "bvlc.npz", tensors)).eval()
    pixels, images = photographs(1, height, width)
    expected = bvlc_maps(tensors, pixels)
    with torch.no_grad():
        maps = network.features(images)
        assert maps.shape == expected.shape
        assert (expected > 0).float().mean() > 0.1
        assert torch.allclose(maps, expected, rtol=1e-3, atol=1e-4 * float(expected.max()))
        assert torch.allclose(network(images), maps.flatten(2).mean(2), atol=1e-5 * float(expected.max()))
        assert not torch.allclose(network.features(images.flip(1)), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_it_computes_what_torchvision_computes(tmp_path: Path, suffix: str) -> None:
    tensors = torchvision_weights(0)
    path = tmp_path / f"googlenet{suffix}"
    save_file(tensors, path) if suffix == ".safetensors" else torch.save(tensors, path)
    network = load_googlenet(path).eval()
    pixels, images = photographs(1, 65, 96)
    expected = torchvision_maps(tensors, pixels)
    with torch.no_grad():
        maps = network.features(images)
    assert maps.shape == expected.shape == (2, 1024, 2, 3)
    assert (expected > 0).float().mean() > 0.1
    assert torch.allclose(maps, expected, rtol=1e-3, atol=1e-4 * float(expected.max()))


def test_response_normalisation_is_caffes() -> None:
    maps = 100 * torch.rand(2, 9, 3, 4, generator=torch.Generator().manual_seed(0))
    for name in ("norm1", "norm2"):
        assert torch.allclose(getattr(GoogLeNet().layers, name)(maps), response_norm(maps), rtol=1e-5)
    single = torch.zeros(1, 1, 1, 1) + 100.0
    assert float(GoogLeNet().layers.norm1(single)) == pytest.approx(100 / 1.2**0.75)


def test_gradient_of_response_normalisation_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = 200 * torch.rand(2, 7, 2, 3, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(ResponseNorm(), (maps.requires_grad_(),))


def test_second_derivative_of_response_normalisation_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = 200 * torch.rand(1, 7, 2, 2, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(ResponseNorm(), (maps.requires_grad_(),))


def test_response_normalisation_in_bfloat16_is_close() -> None:
    """Values and gradients, inside of autocast and outside; on a GPU it runs so."""
    generator = torch.Generator().manual_seed(0)
    maps = (300 * torch.rand(2, 12, 3, 4, generator=generator)).bfloat16().requires_grad_()
    weights = torch.rand(maps.shape, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        found = ResponseNorm()(maps)
        (inside,) = torch.autograd.grad((found * weights).sum(), maps, retain_graph=True)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, ResponseNorm()(maps))
    exact = maps.detach().double().requires_grad_()
    expected = response_norm_with_gradient(exact)
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0)
    assert float((found / expected - 1).detach().square().mean().sqrt()) < 0.006
    (of_found,) = torch.autograd.grad((found * weights).sum(), maps)
    assert torch.equal(inside, of_found)
    (of_exact,) = torch.autograd.grad((expected * weights).sum(), exact)
    torch.testing.assert_close(of_found.double(), of_exact, rtol=0, atol=0.02 * float(of_exact.abs().max()))


def test_sums_of_channels_in_bfloat16_are_rounded_once() -> None:
    values = (1e4 * torch.rand(2, 12, 3, 4, generator=torch.Generator().manual_seed(0))).bfloat16()
    exact = [values.double()[:, max(channel - 2, 0) : channel + 3].sum(1) for channel in range(12)]
    assert torch.equal(_sums_of_near_channels(values), torch.stack(exact, 1).bfloat16())


def test_response_normalisation_in_float16_does_not_overflow() -> None:
    maps = (1000 * torch.rand(2, 12, 3, 4, generator=torch.Generator().manual_seed(0))).half().requires_grad_()
    found, exact = ResponseNorm()(maps), maps.detach().double().requires_grad_()
    assert found.dtype == torch.float16
    expected = response_norm_with_gradient(exact)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=0)
    gradients = [torch.autograd.grad(rows.sum(), of)[0].double() for rows, of in ((found, maps), (expected, exact))]
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-4)


def test_response_normalisation_under_transforms_of_torch() -> None:
    """``torch.func.grad`` and a whole graph of ``torch.compile``."""
    generator = torch.Generator().manual_seed(0)
    maps = 200 * torch.rand(2, 7, 2, 3, generator=generator)
    norm = ResponseNorm()
    (expected,) = torch.autograd.grad(response_norm_with_gradient(given := maps.clone().requires_grad_()).sum(), given)
    torch.testing.assert_close(torch.func.grad(lambda rows: norm(rows).sum())(maps), expected)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    found = compiled(given)
    torch.testing.assert_close(found, norm(maps))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), given)[0], expected)


def test_a_device_without_autocast_has_the_network() -> None:
    assert GoogLeNet().to("meta")(torch.zeros(2, 3, 64, 64, device="meta")).shape == (2, 1024)


def response_norm_with_gradient(maps: Tensor) -> Tensor:
    """Torch's own."""
    return functional.local_response_norm(maps, 5, 1e-4, 0.75, 1.0)


def test_weights_of_the_paper_without_classifier() -> None:
    assert sum(p.numel() for p in GoogLeNet().parameters()) == 6_998_552 - 1_025_000
    sizes = {name: tensor.numel() for name, tensor in torchvision_weights(0).items()}
    kept = [n for n in sizes if n.startswith(("conv", "inception")) and n.endswith(("weight", "bias"))]
    assert sum(p.numel() for p in GoogLeNet(batch_norm=True).parameters()) == sum(sizes[name] for name in kept)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(("size", "side"), [(224, 7), (160, 5), (65, 2)])
def test_shapes(size: int, side: int, batch_norm: bool) -> None:
    network = GoogLeNet(batch_norm).eval()
    images = torch.zeros(1, 3, size, size)
    with torch.no_grad():
        assert network.features(images).shape == (1, 1024, side, side)
        assert network(images).shape == (1, 1024)


def test_half_precision_files_and_loading_leave_no_trace(tmp_path: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in bvlc_weights(0).items()}
    path = write_npz(tmp_path / "half.npz", tensors)
    before = torch.get_rng_state()
    network = load_googlenet(path)
    assert torch.equal(before, torch.get_rng_state())
    assert network.layers.conv1.convolution.weight.dtype == torch.float32
    assert torch.equal(network.layers.conv1.convolution.weight, tensors["conv1/7x7_s2.w"].float())
    assert torch.equal(network.state_dict()["layers.5b.pool.convolution.bias"], tensors["inception_5b/pool_proj.b"])


def test_all_of_it_trains_and_images_may_lie_channels_last() -> None:
    torch.manual_seed(0)
    network, (_, images) = GoogLeNet(), photographs(0, 64, 64)
    rows = network(images)
    rows.square().sum().backward()
    assert all(bool((parameter.grad != 0).any()) for parameter in network.parameters())
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.allclose(network(last), rows, rtol=1e-3, atol=1e-4 * float(rows.detach().max()))
    seen = []
    network.layers.conv1.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    network(last)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_random_start_scales_each_layer_to_its_fan_in() -> None:
    torch.manual_seed(0)
    unit = Unit(32, 64, 3, batch_norm=False)
    assert float(unit.convolution.weight.detach().std()) == pytest.approx((2 / 288) ** 0.5, rel=0.05)
    assert (unit.convolution.bias == 0).all()


def test_by_name(tmp_path: Path) -> None:
    _, images = photographs(0, 64, 64)
    before = torch.get_rng_state()
    first, second, other = (build_encoder("googlenet", (3, 64, 64), seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert output_width(first, images) == 1024
    assert torch.equal(encode(first, images), encode(second, images))
    assert not torch.equal(encode(first, images), encode(other, images))
    path = write_npz(tmp_path / "bvlc.npz", bvlc_weights(3))
    loaded = build_encoder("googlenet", (3, 64, 64), 0, weights=str(path))
    assert torch.equal(encode(loaded, images), encode(load_googlenet(path), images))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_tensors_tell_which_network_they_are_of(batch_norm: bool) -> None:
    torch.manual_seed(0)
    network = GoogLeNet(batch_norm)
    _, images = photographs(0, 64, 64)
    before = torch.get_rng_state()
    rebuilt = rebuild_encoder("googlenet", (3, 64, 64), network.state_dict())
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(encode(rebuilt, images), encode(network, images))
    regional = rebuild_encoder("googlenet-rmac", (3, 64, 64), RMAC(network).state_dict())
    assert isinstance(regional, RMAC)
    assert torch.equal(encode(regional.network, images), encode(network, images))
    with pytest.raises(RuntimeError, match="Missing key"):
        rebuild_encoder("googlenet", (3, 64, 64), {})


def test_what_is_refused_and_how(tmp_path: Path) -> None:
    for shape in ((1, 64, 64), (3, 63, 64), (3, 64, 63), (13,)):
        with pytest.raises(InputError, match=r"'googlenet' needs colour images.* at least 64 x 64 pixels, got"):
            build_encoder("googlenet", shape, 0)
    with pytest.raises(InputError, match=r"left out for encoder 'mlp'.*googlenet, googlenet-rmac"):
        build_encoder("mlp", (13,), 0, weights="some.npz")
    network = GoogLeNet()
    for shape in ((2, 1, 64, 64), (3, 64, 64), (2, 3, 64, 32)):
        with pytest.raises(InputError, match=r"takes RGB images \(N, 3, H, W\).*got shape"):
            network(torch.zeros(shape))
    with pytest.raises(InputError, match=r"normalised floating-point numbers, got torch\.uint8"):
        network(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
    with pytest.raises(InputError, match="does not exist"):
        load_googlenet(tmp_path / "none.npz")
    tensors = bvlc_weights(0)
    other = write_npz(tmp_path / "other.npz", {"conv1.weight": torch.zeros(2)})
    with pytest.raises(InputError, match=r"not GoogLeNet's.*'conv1/7x7_s2.w'.*'conv1.conv.weight'"):
        load_googlenet(other)
    without = {name: tensor for name, tensor in tensors.items() if name != "inception_4c/5x5.b"}
    with pytest.raises(InputError, match=r"lack 1 of .* first 'layers.4c.five.convolution.bias'"):
        load_googlenet(write_npz(tmp_path / "without.npz", without))
    more = tensors | {"inception_6a/1x1.w": torch.zeros(2, 2, 1, 1)}
    with pytest.raises(InputError, match=r"have 1 tensors that the network has not, first 'inception_6a/1x1.w'"):
        load_googlenet(write_npz(tmp_path / "more.npz", more))
    wrong = tensors | {"conv2/3x3.w": torch.zeros(192, 64, 5, 5)}
    with pytest.raises(InputError, match=r"do not fit the network: .*layers.conv2.*\. Use weights"):
        load_googlenet(write_npz(tmp_path / "wrong.npz", wrong))


def benchmark_file(name: str) -> Path:
    path = Path(os.environ.get("SEMIMETRIC_DATA") or "nowhere") / name
    if not path.is_file():
        pytest.skip(f"needs {name}: set SEMIMETRIC_DATA to the folder that holds it")
    return path


@pytest.mark.data
def test_published_weights_are_taken_over_as_they_are() -> None:
    path = benchmark_file("googlenet-imagenet-fp16.npz")
    network = load_googlenet(path)
    arrays = np.load(path)
    stored = [array.astype(np.float32).tobytes() for name, array in arrays.items() if "classifier" not in name]
    assert sorted(p.detach().numpy().tobytes() for p in network.parameters()) == sorted(stored)
    assert np.array_equal(network.layers.conv1.convolution.weight.detach(), arrays["conv1/7x7_s2.w"])
    assert np.array_equal(network.state_dict()["layers.4e.five.convolution.bias"], arrays["inception_4e/5x5.b"])


@pytest.mark.data
def test_published_weights_tell_birds_apart_and_know_a_bird_in_the_mirror() -> None:
    image = pytest.importorskip("PIL.Image")
    network = load_googlenet(benchmark_file("googlenet-imagenet-fp16.npz"))
    with tarfile.open(benchmark_file("cub200-test.tar")) as archive:
        names = [name for name in archive.getnames() if name.endswith(".webp")]
        chosen = [archive.extractfile(name) for name in (names[0], names[-1])]
        pictures = [image.open(io.BytesIO(file.read())).convert("RGB").resize((224, 224)) for file in chosen if file]
    pixels = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2)
    images = (pixels / 255 - MEAN[:, None, None]) / STD[:, None, None]
    rows = encode(network, torch.cat([images, images.flip(3)]))
    assert rows.isfinite().all()
    cosines = rows @ rows.T
    assert cosines[0, 1] < 0.9
    assert cosines[0, 2] > cosines[0, 1]
    assert cosines[1, 3] > cosines[0, 1]
