from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders import RMAC, GoogLeNet, build_encoder, encode, rmac
from semimetric.encoders.regions import AverageMaximum, GeneralizedMean, regions_of, resize_longer


def random_maps(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spread(length: int, side: int, count: int) -> list[int]:
    return [0] if count == 1 else [int(place) for place in np.floor(np.linspace(0, length - side, count) + 1e-9)]


def brute_force(maps: np.ndarray, levels: int) -> np.ndarray:
    """The descriptor (K,) of one map (K, H, W), entry by entry."""
    channels, height, width = maps.shape
    short, long = min(height, width), max(height, width)
    extra, best = 0, math.inf
    for m in range(1, 7) if long > short else ():
        step = (long - short) / m
        distance = abs((short * short - short * step) / (short * short) - 0.4)
        if distance < best:
            extra, best = m, distance
    total = np.zeros(channels)
    for level in range(1, levels + 1):
        side = math.floor(2 * short / (level + 1))
        if side == 0:
            continue
        for top in spread(height, side, level + extra * (height > width)):
            for left in spread(width, side, level + extra * (width > height)):
                region = np.array(
                    [
                        max(maps[k, i, j] for i in range(top, top + side) for j in range(left, left + side))
                        for k in range(channels)
                    ]
                )
                total += region / np.sqrt((region**2).sum())
    return total / np.sqrt((total**2).sum())


@draws(25)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000))
def test_it_is_what_a_loop_computes(height: int, width: int, levels: int, seed: int) -> None:
    maps = random_maps(seed, 2, 3, height, width)
    expected = np.stack([brute_force(one.numpy(), levels) for one in maps])
    assert np.allclose(rmac(maps, levels), expected, atol=1e-12)


def test_regions_of_maps_known_by_hand() -> None:
    square = regions_of(7, 7, 3)
    assert len(square) == 1 + 4 + 9
    assert square[:5] == [(0, 0, 7), (0, 0, 4), (0, 3, 4), (3, 0, 4), (3, 3, 4)]
    assert square[5:] == [(top, left, 3) for top in (0, 2, 4) for left in (0, 2, 4)]
    wide = regions_of(6, 10, 2)  # two windows of 6 in 10 overlap by a third: nearer to 40 % than three, by two thirds
    assert wide == [(0, 0, 6), (0, 4, 6)] + [(top, left, 4) for top in (0, 2) for left in (0, 3, 6)]
    assert sorted(regions_of(10, 6, 2)) == sorted((left, top, side) for top, left, side in wide)


@given(st.integers(2, 40), st.integers(2, 40))
def test_regions_cover_the_map_and_stay_inside(height: int, width: int) -> None:
    for level in (1, 2, 3):
        regions = [
            region for region in regions_of(height, width, 3) if region[2] == 2 * min(height, width) // (level + 1)
        ]
        assert min(top for top, _, _ in regions) == min(left for _, left, _ in regions) == 0
        assert max(top + side for top, _, side in regions) == height
        assert max(left + side for _, left, side in regions) == width


def test_a_long_map_has_six_more_regions_at_most() -> None:
    assert len(regions_of(4, 400, 1)) == 7
    assert len(regions_of(400, 4, 3)) == 1 * 7 + 2 * 8 + 3 * 9


def test_a_constant_map_gives_the_constant_direction() -> None:
    values = torch.tensor([3.0, 0.0, 4.0])
    maps = values[None, :, None, None].expand(2, 3, 7, 5)
    assert torch.allclose(rmac(maps), torch.tensor([0.6, 0.0, 0.8]).expand(2, 3))
    assert torch.allclose(rmac(maps[:, :, :1, :1]), torch.tensor([0.6, 0.0, 0.8]).expand(2, 3))
    assert torch.equal(rmac(torch.zeros(2, 3, 4, 4)), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("side", "least"), [(3, 1.0), (7, 1.0), (8, 1.0), (16, 1.0), (5, 0.998), (6, 0.999), (14, 0.999)]
)
def test_a_mirrored_square_map_has_the_same_descriptor_up_to_rounding(side: int, least: float) -> None:
    maps = random_maps(0, 2, 64, side, side)
    cosines = (rmac(maps) * rmac(maps.flip(3))).sum(1)
    assert (cosines >= least - 1e-12).all()
    assert least == 1 or (cosines < 1 - 1e-9).all()
    assert torch.allclose(rmac(maps.mT), rmac(maps), atol=1e-12)


def test_gradient_is_that_of_finite_differences() -> None:
    for shape in ((2, 3, 4, 4), (1, 2, 3, 6)):
        maps = random_maps(1, *shape).requires_grad_()
        assert torch.autograd.gradcheck(lambda values: rmac(values), maps, eps=1e-7, atol=1e-5)


def test_half_precision_is_left_before_lengths_are_measured() -> None:
    maps = random_maps(0, 2, 4, 6, 6)
    rows = rmac(maps.bfloat16())
    assert rows.dtype == torch.float32
    assert torch.allclose(rows.norm(dim=1), torch.ones(2), atol=1e-6)
    assert torch.allclose(rows.double(), rmac(maps), atol=1e-2)


def test_brightness_does_not_matter() -> None:
    maps = random_maps(0, 2, 4, 6, 6)
    assert torch.allclose(rmac(torch.tensor([7.0, 0.1])[:, None, None, None] * maps), rmac(maps))


class Colours(nn.Module):
    """The image itself as maps, and a record of the sizes it came in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(tuple(images.shape))
        return self.weight * images


class WithFeatures(nn.Module):
    """A network whose maps have a method of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.colours = Colours()

    def features(self, images: Tensor) -> Tensor:
        return self.colours(images)

    def forward(self, images: Tensor) -> Tensor:
        raise AssertionError("the rows are not asked for")


def test_sizes_and_pieces() -> None:
    network = Colours()
    encoder = RMAC(network, sides=(32, 20), chunk=2).eval()
    images = random_maps(0, 5, 3, 12, 24).float()
    rows = encoder(images)
    sizes = [(n, 3, *size) for n in (2, 2, 1) for size in ((16, 32), (10, 20))]
    assert network.seen == sizes
    expected = sum(rmac(resize_longer(images, side)) for side in (32, 20))
    assert torch.allclose(rows, nn.functional.normalize(expected, dim=1), atol=1e-6)
    network.seen.clear()
    encoder.training_sides = (32, 20)
    whole = encoder.train()(images)
    assert network.seen == [(5, 3, 16, 32), (5, 3, 10, 20)]
    assert torch.allclose(whole, rows, atol=1e-6)
    assert torch.equal(RMAC(WithFeatures(), sides=(32, 20)).eval()(images), whole)


def test_training_sees_fewer_sizes() -> None:
    network = Colours()
    images = random_maps(0, 5, 3, 12, 24).float()
    rows = RMAC(network, sides=(32, 20), training_sides=(24,)).train()(images)
    assert network.seen == [(5, 3, 12, 24)]
    assert torch.allclose(rows, rmac(images), atol=1e-6)


def test_average_plus_maximum_sees_whole_images_larger_than_crops() -> None:
    seen: list[tuple[int, ...]] = []

    class Maps(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(tuple(images.shape[2:]))
            return images

    images = torch.rand(2, 3, 20, 40, generator=torch.Generator().manual_seed(0))
    encoder = AverageMaximum(Maps(), side=40, training_side=20)
    rows = encoder.eval()(images)
    torch.testing.assert_close(rows, images.mean((2, 3)) + images.amax((2, 3)))
    encoder.train()(images)
    assert seen == [(20, 40), (10, 20)]
    with pytest.raises(InputError, match="training_side must be a whole number of at least 1, got 0"):
        AverageMaximum(Maps(), training_side=0)


@pytest.mark.parametrize("power", [1.0, 3.0])
def test_generalised_mean_is_what_a_loop_computes(power: float) -> None:
    maps = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    rows = GeneralizedMean(nn.Identity(), power)(maps)
    for image, row in zip(maps, rows, strict=True):
        for channel, value in zip(image, row, strict=True):
            kept = [max(float(entry), 0.0) ** power for entry in channel.flatten()]
            assert float(value) == pytest.approx((sum(kept) / len(kept)) ** (1 / power), abs=1e-5)


def test_generalised_mean_lies_between_average_and_maximum_and_has_a_gradient_at_zero() -> None:
    maps = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    rows = GeneralizedMean(nn.Identity())(maps)
    assert bool((rows > maps.mean((2, 3))).all() & (rows < maps.amax((2, 3))).all())
    half = GeneralizedMean(nn.Identity())(maps.bfloat16())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, rows, rtol=0.01, atol=0)
    blank = torch.zeros(1, 2, 3, 3, requires_grad=True)
    GeneralizedMean(nn.Identity())(blank).sum().backward()
    assert bool(torch.isfinite(blank.grad).all())
    with pytest.raises(InputError, match=r"power must be at least 1, got 0\.5"):
        GeneralizedMean(nn.Identity(), 0.5)


def test_it_trains_the_network_below() -> None:
    network = nn.Conv2d(3, 4, 3)
    RMAC(network, sides=(16, 8))(random_maps(0, 2, 3, 12, 12).float())[:, 0].sum().backward()
    assert network.weight.grad is not None
    assert (network.weight.grad != 0).any()


def test_resizing() -> None:
    images = random_maps(0, 1, 1, 8, 4)
    assert resize_longer(images, 8) is images
    assert resize_longer(images, 16).shape == (1, 1, 16, 8)
    assert resize_longer(images.mT, 3).shape == (1, 1, 2, 3)
    assert resize_longer(random_maps(0, 1, 1, 1, 50), 10).shape == (1, 1, 1, 10)
    stripes = torch.arange(63.0).remainder(2).expand(1, 1, 63, 63)  # every third pixel would be stripes again
    assert (resize_longer(stripes, 21) - 0.5).abs().max() < 0.1
    steps = resize_longer(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]), 4)
    assert torch.allclose(steps[0, 0], torch.tensor([0.0, 0.25, 0.75, 1.0]).expand(4, 4))


def test_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.randn(1, 3, 64, 64)
    encoder = build_encoder("googlenet-rmac", (3, 64, 64), 5)
    assert isinstance(encoder, RMAC)
    assert (encoder.sides, encoder.levels) == ((512, 362, 256), 3)
    assert isinstance(encoder.network, GoogLeNet)
    encoder.sides = (64, 96)
    rows = encode(encoder, images)
    maps = [build_encoder("googlenet", (3, 64, 64), 5).features(resize_longer(images, side)) for side in (64, 96)]
    assert torch.allclose(rows, nn.functional.normalize(sum(rmac(one) for one in maps), dim=1), atol=1e-5)
    with pytest.raises(InputError, match="'googlenet-rmac' needs colour images"):
        build_encoder("googlenet-rmac", (3, 32, 32), 0)
    with pytest.raises(InputError, match="does not exist"):
        build_encoder("googlenet-rmac", (3, 64, 64), 0, weights=tmp_path / "none.npz")


def test_what_is_refused_and_how() -> None:
    for maps in (torch.zeros(2, 3), torch.zeros(1, 3, 0, 4), torch.zeros(1, 3, 4, 4, dtype=torch.long)):
        with pytest.raises(InputError, match=r"maps must be floating-point numbers of shape \(N, K, H, W\).*got torch"):
            rmac(maps)
    with pytest.raises(InputError, match="levels must be a whole number of at least 1, got 0"):
        rmac(torch.zeros(1, 3, 4, 4), levels=0)
    for wrong, message in (
        ({"sides": ()}, "sides must name at least one length"),
        ({"training_sides": ()}, "training_sides must name at least one length"),
        ({"training_sides": (0,)}, "each of training_sides must be a whole number of at least 1, got 0"),
        ({"sides": (512, 0)}, "each of sides must be a whole number of at least 1, got 0"),
        ({"sides": (0.5,)}, "each of sides must be a whole number of at least 1, got 0.5"),
        ({"levels": 0}, "levels must be"),
        ({"chunk": 0}, "chunk must be"),
    ):
        with pytest.raises(InputError, match=message):
            RMAC(nn.Identity(), **wrong)
    with pytest.raises(InputError, match="before its pooling"):
        RMAC(nn.Flatten())(torch.zeros(1, 3, 4, 4))
