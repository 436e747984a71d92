from __future__ import annotations

import pytest
import torch
from torch import nn

from semimetric.core.errors import InputError
from semimetric.encoders import build_encoder, encode, encoder_names, output_width, rebuild_encoder, unit_features
from semimetric.encoders.paper import cifar10_network, mnist_network
from semimetric.encoders.residual import Residual, ResNet9, ResNet9Maxima

SHAPES = {
    "efficientnet-lite0": (3, 32, 32),
    "efficientnet-lite1": (3, 32, 32),
    "efficientnet-lite2": (3, 32, 32),
    "efficientnet-lite2-gem": (3, 32, 32),
    "googlenet": (3, 64, 64),
    "googlenet-avgmax": (3, 64, 64),
    "googlenet-avgmax-224": (3, 64, 64),
    "linear": (9,),
    "paper-mnist": (1, 28, 28),
    "paper-cifar10": (3, 32, 32),
    "small-cnn": (1, 8, 8),
    "mlp": (13,),
    "resnet9": (3, 16, 16),
    "resnet9-512": (3, 16, 16),
    "wrn28-2": (3, 12, 12),
}


def layer_shapes(network: nn.Sequential, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    value, shapes = torch.zeros(2, *shape), []
    for layer in network:
        value = layer(value)
        shapes.append(tuple(value.shape[1:]))
    return shapes


def test_mnist_network_layer_by_layer() -> None:
    shapes = layer_shapes(mnist_network(), (1, 28, 28))
    assert shapes == [(20, 24, 24), (20, 12, 12), (50, 8, 8), (50, 4, 4), (500, 1, 1), (500, 1, 1), (500,), (128,)]
    assert sum(p.numel() for p in mnist_network().parameters()) == 520 + 25_050 + 400_500 + 64_128


def test_cifar10_network_layer_by_layer() -> None:
    shapes = layer_shapes(cifar10_network(), (3, 32, 32))
    spatial = [shape[1] for shape in shapes if len(shape) == 3]
    assert spatial == [32, 16, 16, 16, 16, 8, 8, 8, 4, 1, 1]
    assert shapes[-1] == (64,)
    assert sum(p.numel() for p in cifar10_network().parameters()) == 2_432 + 25_632 + 51_264 + 65_600


def test_pooling_counts_only_the_pixels_it_saw() -> None:
    pools = [layer for layer in cifar10_network() if isinstance(layer, nn.AvgPool2d | nn.MaxPool2d)]
    assert len(pools) == 3
    for pool in pools:
        assert torch.equal(pool(torch.ones(1, 1, 16, 16)), torch.ones(1, 1, 8, 8))
    ramp = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert pools[1](ramp)[0, 0, 1, 1] == pytest.approx((10 + 11 + 14 + 15) / 4)


@pytest.mark.parametrize(("make", "deviations"), [(mnist_network, [0.01] * 4), (cifar10_network, [0.01] + [0.05] * 3)])
def test_published_start_weights(make, deviations: list[float]) -> None:
    torch.manual_seed(0)
    layers = [layer for layer in make() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer, deviation in zip(layers, deviations, strict=True):
        assert float(layer.weight.detach().std()) == pytest.approx(deviation, rel=0.1)
        assert (layer.bias == 0).all()


def test_resnet9_has_the_weights_of_its_layout() -> None:
    layers = [(3, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 512), (512, 512), (512, 512)]
    expected = sum(9 * a * b + 2 * b for a, b in layers) + 513 * 128
    assert expected == 6_633_664
    assert sum(p.numel() for p in ResNet9(3).parameters()) == expected


def test_resnet9_without_its_projection_is_the_same_network_up_to_where_it_pools() -> None:
    torch.manual_seed(0)
    projected, plain = ResNet9(3, base=8).eval(), ResNet9Maxima(3, base=8).eval()
    weights = [tensor for name, tensor in projected.state_dict().items() if not name.startswith("last.")]
    plain.load_state_dict(dict(zip(plain.state_dict(), weights, strict=True)))
    images = torch.randn(4, 3, 20, 20)
    # In evaluation mode with positive gains, pooling before normalisation and ReLU or after them is the same.
    assert torch.allclose(projected.stages(images).amax((2, 3)), plain(images), atol=1e-6)


@pytest.mark.parametrize(
    ("channels", "height", "width"), [(3, 16, 16), (3, 32, 32), (1, 28, 28), (3, 17, 40), (3, 64, 64)]
)
def test_resnet9_takes_images_from_16_pixels(channels: int, height: int, width: int) -> None:
    images = torch.randn(2, channels, height, width)
    assert ResNet9(channels, width=10, base=8).eval()(images).shape == (2, 10)
    assert ResNet9Maxima(channels, base=8).eval()(images).shape == (2, 64)


def test_a_residual_block_adds_to_what_it_is_given() -> None:
    block, images = Residual(4).eval(), torch.randn(2, 4, 5, 5)
    assert torch.equal(block(images), images + block.body(images))
    assert not torch.equal(block(images), images)


def test_resnet9_trains_all_of_itself() -> None:
    torch.manual_seed(0)
    network = ResNet9(3, width=10, base=8)
    network(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(bool((parameter.grad != 0).any()) for parameter in network.parameters())


def test_resnet9_does_not_mind_how_images_lie_in_memory_and_repeats_itself() -> None:
    torch.manual_seed(0)
    network, images = ResNet9(3, width=10, base=8), torch.randn(4, 3, 20, 20)
    network(images)  # batch normalisation has seen something
    network.eval()
    rows = network(images)
    assert torch.equal(rows, network(images))
    assert torch.allclose(rows, network(images.contiguous(memory_format=torch.channels_last)), atol=1e-5)
    assert torch.allclose(rows[:1], network(images[:1]), atol=1e-5)


@pytest.mark.parametrize(("columns", "largest"), [(1, 2.0), (4, 2.0), (16, 0.5), (64, 0.125), (100, 0.1)])
def test_biases_of_an_mlp_are_large_where_columns_are_few(columns: int, largest: float) -> None:
    biases = build_encoder("mlp", (columns,), 0).state_dict()["1.bias"]
    assert float(biases.abs().max()) == pytest.approx(largest, rel=0.02)
    assert float(biases.abs().max()) <= largest * (1 + 1e-6)


def test_an_untrained_mlp_tells_rows_apart_that_differ_in_length_alone() -> None:
    rows = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    encoder = build_encoder("mlp", (4,), 0)
    features, doubled = encode(encoder, rows), encode(encoder, 2 * rows)
    typical = torch.pdist(features).mean()
    assert float((features - doubled).norm(dim=1).mean() / typical) > 0.4  # 0.26 with the biases of torch


@pytest.mark.parametrize("name", [name for name in encoder_names() if name != "googlenet-rmac"])  # slow at 512 px
def test_every_encoder_is_seeded_and_returns_rows(name: str) -> None:
    inputs = torch.randn(5, *SHAPES[name], generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    first, second, other = (build_encoder(name, SHAPES[name], seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert output_width(first, inputs) == encode(first, inputs).shape[1]
    assert torch.equal(encode(first, inputs), encode(second, inputs))
    assert torch.equal(encode(first, inputs), encode(other, inputs)) == (name == "linear")  # it is the identity
    assert torch.allclose(encode(first, inputs).norm(dim=1), torch.ones(5), atol=1e-5)


def test_an_encoder_is_rebuilt_from_its_tensors() -> None:
    encoder = build_encoder("paper-cifar10", SHAPES["paper-cifar10"], 4, init="he")
    rebuilt = rebuild_encoder("paper-cifar10", SHAPES["paper-cifar10"], encoder.state_dict(), init="he")
    assert all(torch.equal(a, b) for a, b in zip(encoder.parameters(), rebuilt.parameters(), strict=True))


def test_chunks_do_not_change_features_and_the_mode_is_restored() -> None:
    encoder = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    inputs = torch.randn(10, 4)
    assert torch.allclose(encode(encoder, inputs, chunk=3), encode(encoder, inputs), atol=1e-6)
    assert encoder.training


def test_a_zero_output_stays_zero() -> None:
    assert torch.equal(unit_features(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(InputError, match=r"takes inputs of shape \(1, 28, 28\), got \(3, 32, 32\)"):
        build_encoder("paper-mnist", (3, 32, 32), 0)
    with pytest.raises(InputError, match="at least 8 x 8"):
        build_encoder("small-cnn", (13,), 0)
    for shape in ((3, 15, 32), (3, 32, 15), (13,)):
        with pytest.raises(InputError, match=r"'resnet9' needs images.* of at least 16 x 16 pixels.*'small-cnn'"):
            build_encoder("resnet9", shape, 0)
    with pytest.raises(InputError, match="one of paper-mnist"):
        build_encoder("vgg", (1, 28, 28), 0)
    with pytest.raises(InputError, match="one row per example"):
        output_width(nn.Conv2d(1, 2, 3), torch.zeros(2, 1, 8, 8))
    with pytest.raises(InputError, match="cannot take inputs of shape"):
        output_width(nn.Linear(3, 2), torch.zeros(2, 5))


def test_a_row_without_a_direction_is_zero_and_has_no_gradient() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-13, 0.0], [1e-9, 0.0]], requires_grad=True)
    unit = unit_features(rows)
    assert torch.allclose(unit, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    unit_features(unit)[:3, 1].sum().backward()
    assert torch.isfinite(rows.grad).all()
    assert float(rows.grad[0].norm()) > 0
    assert not rows.grad[1:3].any()
