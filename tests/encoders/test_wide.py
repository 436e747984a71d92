from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, leaky_relu

from semimetric.core.errors import InputError
from semimetric.encoders import build_encoder, encode
from semimetric.encoders.features import features_of
from semimetric.encoders.wide import BATCH_SHARE, SLOPE, WideBlock, WideResNet


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def small(channels: int = 3) -> WideResNet:
    """A network of depth 10."""
    torch.manual_seed(0)
    return WideResNet(channels, width=1, blocks=1)


@pytest.mark.parametrize(("channels", "count"), [(3, 1_466_320), (1, 1_466_032)])
def test_wrn28_2_has_the_weights_of_its_layout(channels: int, count: int) -> None:
    expected = 9 * channels * 16
    before = 16
    for out in (32, 64, 128):
        first = 2 * before + 9 * before * out + 2 * out + 9 * out * out + before * out
        others = 2 * (2 * out + 9 * out * out)
        expected, before = expected + first + 3 * others, out
    expected += 2 * 128
    assert expected == count
    network = build_encoder("wrn28-2", (channels, 32, 32), 0)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_it_is_28_layers_deep() -> None:
    kernels = [layer.kernel_size for layer in WideResNet(3).modules() if isinstance(layer, nn.Conv2d)]
    assert kernels.count((3, 3)) + 3 == 28  # the count of depth includes a projection in each group
    assert kernels.count((1, 1)) == 3


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (64, 64), (8, 8), (9, 15)])
def test_wrn28_2_takes_small_images(channels: int, height: int, width: int) -> None:
    network = build_encoder("wrn28-2", (channels, height, width), 0).eval()
    inputs = images(2, channels, height, width)
    assert network(inputs).shape == (2, 128)
    halved = math.ceil(math.ceil(height / 2) / 2), math.ceil(math.ceil(width / 2) / 2)
    assert network.maps(inputs).shape == (2, 128, *halved)


def test_images_that_are_too_small_are_refused() -> None:
    for shape in ((3, 7, 32), (3, 32, 7), (13,)):
        with pytest.raises(InputError, match=r"'wrn28-2' needs images.* of at least 8 x 8 pixels"):
            build_encoder("wrn28-2", shape, 0)


def plain_rows(network: WideResNet, inputs: Tensor) -> Tensor:
    """The network in evaluation mode, written out from the names of its tensors."""
    tensors = network.state_dict()

    def active(maps: Tensor, name: str) -> Tensor:
        found = (tensors[f"{name}.0.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return leaky_relu(batch_norm(maps, *found), 0.1)

    maps = conv2d(inputs, tensors["maps.0.weight"], padding=1)
    last = len(network.maps) - 1
    for block in range(1, last):
        name, stride = f"maps.{block}", 2 if block in (3, 5) else 1
        started = active(maps, f"{name}.activate")
        inner = conv2d(started, tensors[f"{name}.body.0.weight"], padding=1, stride=stride)
        inner = conv2d(active(inner, f"{name}.body.1"), tensors[f"{name}.body.2.weight"], padding=1)
        changes = f"{name}.project.weight" in tensors
        maps = inner + (conv2d(started, tensors[f"{name}.project.weight"], stride=stride) if changes else maps)
    return active(maps, f"maps.{last}").flatten(2).mean(2)


def test_rows_are_those_of_plain_functions() -> None:
    torch.manual_seed(0)
    network, inputs = WideResNet(3, width=2, blocks=2), images(3, 3, 14, 14)
    for seed in range(40):
        network(3 * images(4, 3, 14, 14, seed=seed) + 1)  # running statistics have moved
    network.eval()
    torch.testing.assert_close(network(inputs), plain_rows(network, inputs), rtol=1e-4, atol=1e-4)


def test_a_block_of_one_shape_adds_to_what_it_is_given_and_leaves_it_alone() -> None:
    block, maps = WideBlock(4, 4, 1).eval(), images(2, 4, 5, 5)
    before = maps.clone()
    with torch.no_grad():
        assert torch.equal(block(maps), maps + block.body(block.activate(maps)))
        block.body[2].weight.zero_()
        assert torch.equal(block(maps), before)
    assert torch.equal(maps, before)


def test_start_weights_are_those_of_he_for_the_backward_pass() -> None:
    torch.manual_seed(0)
    for layer in WideResNet(3).modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 4000:
            fan_out = layer.out_channels * layer.kernel_size[0] ** 2
            expected = math.sqrt(2 / (1 + SLOPE**2) / fan_out)
            assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.06)
            assert float(layer.weight.detach().mean()) == pytest.approx(0.0, abs=0.05 * expected)


def test_running_statistics_move_by_a_thousandth() -> None:
    network, inputs = small(), 5 + images(8, 3, 10, 10)
    first = network.maps[1].activate[0]
    network(inputs)
    means = conv2d(inputs, network.maps[0].weight, padding=1).mean((0, 2, 3))
    torch.testing.assert_close(first.running_mean, BATCH_SHARE * means)
    assert BATCH_SHARE == 0.001


def test_other_images_of_the_batch_matter_in_training_mode_alone() -> None:
    network, inputs, others = small(), images(4, 3, 12, 12), 3 * images(4, 3, 12, 12, seed=1)
    with torch.no_grad():
        alone, among = network(inputs), network(torch.cat([inputs, others]))[:4]
        assert not torch.allclose(alone, among, atol=1e-2)
        network.eval()
        alone, among = network(inputs), network(torch.cat([inputs, others]))[:4]
    assert torch.allclose(alone, among, atol=1e-5)


def test_the_gradient_reaches_every_weight() -> None:
    torch.manual_seed(0)
    network = WideResNet(3)
    network(images(4, 3, 16, 16)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert bool(torch.isfinite(parameter.grad).all()), name
        assert bool((parameter.grad != 0).any()), name


def test_the_gradient_is_that_of_finite_differences() -> None:
    network, inputs = small(1).double(), images(2, 1, 8, 8).double().requires_grad_()
    network.eval()
    assert torch.autograd.gradcheck(lambda x: network(x).sum(1), inputs, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_half_precision_and_channels_last_give_nearly_the_same(training: bool) -> None:
    torch.manual_seed(0)
    network, inputs = WideResNet(3).train(training), images(6, 3, 16, 16)
    rows = features_of(network, inputs)
    network.to(memory_format=torch.channels_last)
    last = features_of(network, inputs.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, rows, rtol=1e-3, atol=1e-4)
    half = features_of(network, inputs, "bfloat16")
    assert half.dtype == torch.float32
    assert float((half * rows).sum(1).detach().min()) > 0.99
    half[:, :5].sum().backward()
    grads = [parameter.grad for parameter in network.parameters()]
    assert all(grad.dtype == torch.float32 and bool(torch.isfinite(grad).all()) for grad in grads)


def test_it_learns_small_images() -> None:
    network, generator = small(1), torch.Generator().manual_seed(0)
    head = nn.Linear(64, 2)
    labels = torch.arange(32) % 2
    stripes = torch.where(labels[:, None, None, None] > 0, torch.eye(8).roll(1, 0), torch.ones(8, 8) / 8)
    optimizer = torch.optim.SGD([*network.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    losses = []
    for _ in range(12):
        inputs = stripes + 0.3 * torch.randn(32, 1, 8, 8, generator=generator)
        loss = nn.functional.cross_entropy(head(network(inputs)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 < losses[0]


def test_a_new_network_gives_images_different_rows() -> None:
    network = build_encoder("wrn28-2", (3, 32, 32), 0)
    rows = encode(network, images(8, 3, 32, 32))
    assert float(torch.pdist(rows).min()) > 0.01
