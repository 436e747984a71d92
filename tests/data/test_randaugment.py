"""RandAugment: each operation against Pillow, its draws, and its views on any device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from helpers.device import OnlyOnDevice
from helpers.views import pictures, seeded
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.data import Augmentation, RandAugment, Views, augment, augmentation_for, preset_views, rand_augment
from semimetric.data.randaugment import OPERATIONS, operate
from semimetric.metric import GraphedFunction

SHAPES = [(3, 32, 32), (1, 32, 32), (3, 24, 40), (1, 45, 20)]
MOVES = ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"]
SIZES = torch.linspace(0.003, 0.997, 23)
BLACK, WHITE = torch.tensor([-2.0, -1.5, -3.0]).reshape(3, 1, 1), torch.tensor([2.5, 2.0, 1.0]).reshape(3, 1, 1)


def with_pillow(name: str, image: Image.Image, size: float) -> Image.Image:
    """One operation on one image, as FixMatch calls Pillow."""
    width, height = image.size
    kept, signed = 0.05 + 0.9 * size, 2 * size - 1
    affine = Image.Transform.AFFINE
    share = 0.3 * signed
    return {
        "identity": lambda: image,
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalise": lambda: ImageOps.equalize(image),
        "posterise": lambda: ImageOps.posterize(image, 4 + int(5 * size)),
        "solarise": lambda: ImageOps.solarize(image, 256 * size),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(kept),
        "colour": lambda: ImageEnhance.Color(image).enhance(kept),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(kept),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(kept),
        "rotate": lambda: image.rotate(30 * signed),
        "shear_x": lambda: image.transform(image.size, affine, (1, share, 0, 0, 1, 0)),
        "shear_y": lambda: image.transform(image.size, affine, (1, 0, 0, share, 1, 0)),
        "translate_x": lambda: image.transform(image.size, affine, (1, 0, share * width, 0, 1, 0)),
        "translate_y": lambda: image.transform(image.size, affine, (1, 0, 0, 0, 1, share * height)),
    }[name]()


def expected_of(name: str, levels: Tensor, sizes: Tensor) -> Tensor:
    results = []
    for image, size in zip(levels.byte().numpy(), sizes.tolist(), strict=True):
        picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
        found = np.asarray(with_pillow(name, picture, size), dtype=np.float32)
        results.append(torch.from_numpy(found.reshape(*found.shape[:2], -1).transpose(2, 0, 1).copy()))
    return torch.stack(results)


def found_of(name: str, levels: Tensor, sizes: Tensor) -> Tensor:
    return operate(levels, torch.full_like(sizes, OPERATIONS.index(name)), sizes)


def levels_of(count: int, shape: tuple[int, ...], low: int = 20, high: int = 230) -> Tensor:
    """Pictures of 256 levels with light and dark areas, some of them noisy."""
    noise = torch.rand(count, *shape, generator=seeded())
    smooth = torch.nn.functional.avg_pool2d(noise, 7, stride=1, padding=3)
    mixed = torch.where(torch.rand(count, 1, 1, 1, generator=seeded(1)) < 0.5, smooth, noise)
    return (low + (high - low) * mixed).round()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", sorted({*OPERATIONS} - {*MOVES}))
def test_levels_equal_those_of_pillow_to_one_level(name: str, shape: tuple[int, ...]) -> None:
    levels = levels_of(len(SIZES), shape)
    found, expected = found_of(name, levels, SIZES), expected_of(name, levels, SIZES)
    assert float((found - expected).abs().max()) <= (0 if name in ("identity", "posterise", "solarise") else 1)
    assert float((found != expected).float().mean()) < (0.2 if name == "sharpness" else 0.02)
    assert name == "identity" or (name == "colour" and shape[0] == 1) or not torch.equal(found, levels)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MOVES)
def test_moves_take_the_pixels_that_pillow_takes(name: str, shape: tuple[int, ...]) -> None:
    levels = levels_of(len(SIZES), shape)
    found, expected = found_of(name, levels, SIZES), expected_of(name, levels, SIZES)
    assert float((found != expected).float().mean()) < 0.002  # a rounded coordinate between two pixels
    assert not torch.equal(found, levels)
    assert float((found == 0).float().mean()) > 0.01  # black comes in; no level was 0


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("picture", ["flat", "black", "white", "two levels", "tiny", "one pixel", "full range"])
def test_odd_pictures_equal_those_of_pillow(name: str, picture: str) -> None:
    levels = {
        "flat": torch.full((5, 3, 32, 32), 77.0),
        "black": torch.zeros(5, 3, 32, 32),
        "white": torch.full((5, 3, 32, 32), 255.0),
        "two levels": torch.where(levels_of(5, (3, 32, 32)) > 128, 200.0, 90.0),
        "tiny": levels_of(5, (3, 2, 2)),
        "one pixel": levels_of(5, (3, 1, 1)),
        "full range": torch.arange(256.0).reshape(1, 1, 16, 16).expand(5, 3, -1, -1),
    }[picture]
    sizes = torch.linspace(0.07, 0.93, 5)
    found, expected = found_of(name, levels, sizes), expected_of(name, levels, sizes)
    assert float((found - expected).abs().max()) <= 1 or name in MOVES
    assert float((found != expected).float().mean()) < (0.01 if name in MOVES else 0.25)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_of_a_batch_get_their_own_operation(channels: int) -> None:
    levels = levels_of(4 * len(OPERATIONS), (channels, 16, 16))
    choice = torch.arange(4 * len(OPERATIONS)).remainder(len(OPERATIONS)).float()
    sizes = torch.rand(len(levels), generator=seeded())
    together = operate(levels, choice, sizes)
    assert torch.equal(together, together.round())
    assert 0 <= float(together.min()) < float(together.max()) <= 255
    for row, name in enumerate(choice.int().tolist()):
        alone = found_of(OPERATIONS[name], levels[row : row + 1], sizes[row : row + 1])
        assert torch.equal(together[row : row + 1], alone)


def test_one_channel_has_no_colour() -> None:
    levels = levels_of(20, (1, 16, 16), 0, 255)
    assert torch.equal(found_of("colour", levels, torch.rand(20, generator=seeded())), levels)


def scaled(count: int, channels: int = 3, side: int = 16) -> Tensor:
    """Images whose levels are spread between black and white."""
    levels = levels_of(count, (channels, side, side), 0, 255)
    return BLACK[:channels] + levels / 255 * (WHITE - BLACK)[:channels]


def levels_again(images: Tensor) -> Tensor:
    channels = images.shape[1]
    return (images - BLACK[:channels]) / (WHITE - BLACK)[:channels] * 255


@pytest.mark.parametrize("count", [1, 3])
def test_views_are_the_operations_drawn_one_after_the_other(count: int) -> None:
    images = scaled(60)
    choices, sizes = torch.rand(2, count, 60, generator=seeded(4))
    expected = levels_of(60, (3, 16, 16), 0, 255)
    for choice, size in zip((choices * 14).floor(), sizes, strict=True):
        expected = operate(expected, choice, size)
    found = rand_augment(images, BLACK, WHITE, count, seeded(4))
    torch.testing.assert_close(levels_again(found), expected, atol=1e-3, rtol=0)


def test_every_operation_is_drawn_as_often_and_with_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(
        "semimetric.data.randaugment.operate",
        lambda levels, choice, size: drawn.append(torch.stack((choice, size))) or levels,
    )
    rand_augment(torch.zeros(14000, 1, 1, 1), BLACK[:1], WHITE[:1], 3, seeded())
    choices, sizes = torch.stack(drawn, 1)  # (3, N) each
    for slot in choices:
        counts = slot.long().bincount(minlength=14)
        assert len(counts) == 14
        assert 850 < int(counts.min()) <= int(counts.max()) < 1150  # 1000 expected, deviation 30
    for first, second in itertools.combinations(choices, 2):
        assert 850 < int((first == second).sum()) < 1150
    assert 0 <= float(sizes.min()) < float(sizes.max()) < 1
    assert abs(float(sizes.mean()) - 0.5) < 0.01
    assert abs(float(torch.corrcoef(torch.cat((choices, sizes))).fill_diagonal_(0).abs().max())) < 0.04


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = scaled(50)
    whole = rand_augment(images, BLACK, WHITE, generator=seeded())
    for most in (1, 3 * 16 * 16 * 7):
        monkeypatch.setattr("semimetric.data.randaugment._PIECE", most)
        assert torch.equal(rand_augment(images, BLACK, WHITE, generator=seeded()), whole)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_shape_and_type_are_kept_and_a_seed_repeats(channels: int, dtype: torch.dtype) -> None:
    images = scaled(30, channels).to(dtype)
    before = images.clone()
    view = rand_augment(images, BLACK[:channels], WHITE[:channels], generator=seeded(3))
    assert (view.shape, view.dtype) == (images.shape, dtype)
    assert torch.equal(images, before)
    assert torch.equal(view, rand_augment(images, BLACK[:channels], WHITE[:channels], generator=seeded(3)))
    assert not torch.equal(view, rand_augment(images, BLACK[:channels], WHITE[:channels], generator=seeded(4)))
    assert float(levels_again(view.float()).min()) > -1
    assert float(levels_again(view.float()).max()) < 256


def test_no_images_and_channels_without_range_are_fine() -> None:
    assert rand_augment(torch.zeros(0, 3, 8, 8), BLACK, WHITE).shape == (0, 3, 8, 8)
    flat = torch.full((9, 1, 8, 8), 2.0)
    view = rand_augment(flat, torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), 2.0), generator=seeded())
    assert torch.isfinite(view).all()


def test_what_is_no_batch_of_scaled_images_is_refused() -> None:
    with pytest.raises(InputError, match=r"RandAugment needs images \(N, C, H, W\), got shape \(5, 4\)"):
        rand_augment(torch.zeros(5, 4), BLACK, WHITE)
    with pytest.raises(InputError, match=r"scaled floating-point numbers, got torch\.uint8"):
        rand_augment(torch.zeros(5, 3, 4, 4, dtype=torch.uint8), BLACK, WHITE)
    with pytest.raises(InputError, match="count must be at least 1, got 0"):
        RandAugment(count=0)


def test_a_strong_view_is_a_weak_one_then_operations_then_cutout() -> None:
    images = scaled(40)
    strong = augmentation_for("randaugment", "strong")
    assert strong == RandAugment(augmentation_for("objects", "weak"), 3, Augmentation(cutout=0.5))
    generator = seeded()
    weak = augment(images, augmentation_for("randaugment", "weak"), generator)
    changed = rand_augment(weak, BLACK, WHITE, 3, generator)
    expected = augment(changed, Augmentation(cutout=0.5), generator)
    assert torch.equal(strong(images, BLACK, WHITE, seeded()), expected)


def test_views_take_black_and_white_from_all_inputs() -> None:
    images = scaled(40)
    views = preset_views(images, "randaugment", ("weak", "strong"))
    assert views.augmentations == (augmentation_for("objects", "weak"), augmentation_for("randaugment", "strong"))
    assert list(views.state_dict()) == ["centre", "spread", "black", "white"]
    assert torch.equal(views.black.flatten(), images.amin((0, 2, 3)))
    assert torch.equal(views.white.flatten(), images.amax((0, 2, 3)))
    torch.manual_seed(0)
    weak, strong = views(images[:10]).split(10)
    torch.manual_seed(0)
    assert torch.equal(weak, augment(images[:10], augmentation_for("objects", "weak")))
    assert torch.equal(strong, augmentation_for("randaugment", "strong")(images[:10], views.black, views.white))
    assert float((strong - images[:10]).norm()) > float((weak - images[:10]).norm())


def test_views_without_it_keep_their_state_and_vectors_are_refused() -> None:
    assert list(preset_views(scaled(5), "randaugment", ("weak",)).state_dict()) == ["centre", "spread"]
    with pytest.raises(InputError, match="RandAugment needs images"):
        preset_views(pictures(5, 4), "randaugment", ("weak", "strong"))
    with pytest.raises(InputError, match="RandAugment needs images"):
        Views(pictures(5, 3, 4), [RandAugment()])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_value_is_read_on_the_host(channels: int, dtype: torch.dtype) -> None:
    images = torch.empty(6, channels, 16, 12, device="meta", dtype=dtype)
    black, white = torch.empty(2, channels, 1, 1, device="meta").unbind()
    strong = augmentation_for("randaugment", "strong")
    with OnlyOnDevice():
        view = strong(images, black, white)
    assert (view.shape, view.dtype, view.device) == (images.shape, images.dtype, images.device)


@pytest.mark.gpu
def test_replays_of_a_recorded_view_are_new_draws_that_a_seed_repeats() -> None:
    images = scaled(64, side=32).cuda()
    strong = augmentation_for("randaugment", "strong")
    recorded = GraphedFunction(lambda *tensors: (strong(*tensors),))
    black, white = BLACK.cuda(), WHITE.cuda()
    recorded(images, black, white)
    torch.cuda.manual_seed(0)
    (first,), (second,) = recorded(images, black, white), recorded(images, black, white)
    assert not torch.equal(first, second)
    torch.cuda.manual_seed(0)
    assert torch.equal(recorded(images, black, white)[0], first)
    torch.cuda.manual_seed(0)
    assert torch.equal(strong(images, black, white), first)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_gpu_does_what_a_cpu_does(name: str) -> None:
    levels = levels_of(len(SIZES), (3, 32, 32))
    found = found_of(name, levels.cuda(), SIZES.cuda()).cpu()
    expected = found_of(name, levels, SIZES)
    assert float((found - expected).abs().max()) <= 1 or name in MOVES
    assert float((found != expected).float().mean()) < 0.01
