from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from helpers.views import ALWAYS, EVERYTHING, OPTIONAL, pictures, same_picture, seeded
from scipy import ndimage
from torch import Tensor

from semimetric.data.augmentation import Augmentation, augment
from semimetric.data.views import STRONG


def fits(x: Tensor, y: Tensor) -> Tensor:
    """Least-squares slopes (N,) of y on x, image by image, after a check that the rest is an own constant."""
    x, y = x.flatten(1), y.flatten(1)
    x_centred, y_centred = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    slopes = (x_centred * y_centred).sum(1) / (x_centred**2).sum(1)
    torch.testing.assert_close(y_centred, slopes[:, None] * x_centred)
    return slopes


def assert_fills(amounts: Tensor, largest: float) -> None:
    """Uniform on [-largest, largest], both ends included for all one can see in 1,000 draws."""
    assert float(amounts.abs().max()) <= largest * (1 + 1e-6)
    assert float(amounts.max()) > 0.98 * largest
    assert float(amounts.min()) < -0.98 * largest
    assert abs(float(amounts.mean())) < 0.1 * largest
    assert abs(float(amounts.abs().mean()) - largest / 2) < 0.05 * largest


def source_maps(augmentation: Augmentation, count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The maps (N, 2, 2) and offsets (N, 2) from the (x, y) of a view to those of its image, both from the centre.

    Bilinear interpolation keeps linear functions, so the view of an image of its own coordinates tells them.
    """
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64) - (height - 1) / 2,
        torch.arange(width, dtype=torch.float64) - (width - 1) / 2,
        indexing="ij",
    )
    one = torch.ones_like(x)
    views = augment(torch.stack((x, y, one)).expand(count, -1, -1, -1), augmentation, seeded())
    maps, offsets = [], []
    places = torch.stack((x, y, one), dim=-1)
    for view in views:
        inside = view[2] > 1 - 1e-9
        solution = torch.linalg.lstsq(places[inside], view[:2, inside].T).solution
        torch.testing.assert_close(places[inside] @ solution, view[:2, inside].T)
        maps.append(solution[:2].T)
        offsets.append(solution[2])
    return torch.stack(maps), torch.stack(offsets)


@pytest.mark.parametrize("shape", [(5, 7), (4, 1, 8, 9), (4, 3, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_nothing_on_returns_the_inputs_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    inputs = pictures(*shape, dtype=dtype)
    view = augment(inputs, Augmentation(), seeded())
    assert torch.equal(view, inputs)
    assert view.dtype == dtype


def test_every_image_has_its_own_draw() -> None:
    views = augment(same_picture(64, 3, 12, 12), EVERYTHING, seeded())
    assert len(torch.unique(views.flatten(1), dim=0)) == 64
    vectors = augment(torch.ones(64, 5), Augmentation(noise=0.1), seeded())
    assert len(torch.unique(vectors, dim=0)) == 64


@pytest.mark.parametrize("augmentation", [EVERYTHING, STRONG["objects"], STRONG["vectors"]])
def test_the_same_generator_state_gives_the_same_views(augmentation: Augmentation) -> None:
    inputs, generator = pictures(6, 3, 9, 9), seeded(3)
    first, second = augment(inputs, augmentation, generator), augment(inputs, augmentation, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, augment(inputs, augmentation, seeded(3)))


def test_without_a_generator_torch_decides() -> None:
    inputs = pictures(6, 3, 9, 9)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        first = augment(inputs, EVERYTHING)
        torch.manual_seed(5)
        assert torch.equal(augment(inputs, EVERYTHING), first)
    assert torch.equal(augment(inputs, EVERYTHING, seeded(5)), first)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)])
def test_types_are_kept_and_share_their_draws(dtype: torch.dtype, tolerance: float) -> None:
    inputs = pictures(20, 3, 16, 16, dtype=dtype)
    view = augment(inputs, EVERYTHING, seeded())
    assert view.dtype == dtype
    expected = augment(inputs.double(), EVERYTHING, seeded())
    torch.testing.assert_close(view.double(), expected, atol=tolerance, rtol=tolerance)


def shifted(image: Tensor, down: int, right: int) -> Tensor:
    height, width = image.shape[1:]
    result = torch.zeros_like(image)
    rows, columns = slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0))
    from_rows, from_columns = slice(max(-down, 0), height - max(down, 0)), slice(max(-right, 0), width - max(right, 0))
    result[:, rows, columns] = image[:, from_rows, from_columns]
    return result


def test_shifts_are_slices_with_zeros_and_reach_their_limits() -> None:
    image = pictures(3, 8, 12)
    views = augment(image.expand(600, -1, -1, -1), Augmentation(shift=0.25), seeded())
    candidates = {
        (down, right): shifted(image, down, right)
        for down in range(-2, 3)  # 0.25 * 8 pixels down, 0.25 * 12 to the right
        for right in range(-3, 4)
    }
    counts = {place: int((views == view).flatten(1).all(1).sum()) for place, view in candidates.items()}
    assert sum(counts.values()) == 600
    assert min(counts.values()) >= 5  # 17 expected at each of the 35 places


def test_flip_is_exact_and_its_own_inverse() -> None:
    inputs = pictures(10, 3, 9, 11)
    always = Augmentation(flip=1.0)
    once = augment(inputs, always, seeded())
    assert torch.equal(once, inputs.flip(3))
    assert torch.equal(augment(once, always, seeded(1)), inputs)


def test_flip_happens_as_often_as_asked_and_leaves_the_others_alone() -> None:
    inputs = pictures(1000, 1, 4, 4)
    views = augment(inputs, Augmentation(flip=0.3), seeded())
    mirrored = (views == inputs.flip(3)).flatten(1).all(1)
    assert torch.equal(views[~mirrored], inputs[~mirrored])
    assert 250 < int(mirrored.sum()) < 350


def test_flip_comes_before_the_shift() -> None:
    inputs = pictures(50, 1, 8, 8)
    both = augment(inputs, Augmentation(flip=1.0, shift=0.25), seeded())
    assert torch.equal(both, augment(inputs.flip(3), Augmentation(shift=0.25), seeded()))


def test_rotation_turns_by_up_to_its_range() -> None:
    maps, offsets = source_maps(Augmentation(rotate=40.0), 1000, 10, 14)
    torch.testing.assert_close(maps @ maps.mT, torch.eye(2).double().expand(1000, 2, 2))
    torch.testing.assert_close(offsets, torch.zeros(1000, 2).double())
    assert_fills(torch.rad2deg(torch.atan2(maps[:, 0, 1], maps[:, 0, 0])), 40.0)


def test_zoom_is_a_power_of_two_up_to_its_range() -> None:
    maps, _ = source_maps(Augmentation(scale=0.5), 1000, 12, 9)
    torch.testing.assert_close(maps, maps[:, :1, :1] * torch.eye(2))
    assert_fills(maps[:, 0, 0].log2(), 0.5)


def test_a_crop_keeps_at_least_its_share_of_the_area_and_stays_inside() -> None:
    maps, offsets = source_maps(Augmentation(crop=0.84), 1000, 20, 12)
    torch.testing.assert_close(maps, maps[:, :1, :1] * torch.eye(2))
    shares = maps[:, 0, 0]
    kept = shares.square()
    assert 0.16 <= float(kept.min()) < 0.17
    assert 0.99 < float(kept.max()) <= 1.0
    assert abs(float(kept.mean()) - 0.58) < 0.02  # uniform in the area
    room = (1 - shares)[:, None] * torch.tensor([6.0, 10.0])  # halves of the width and the height
    assert bool((offsets.abs() <= room + 1e-6).all())
    assert float((offsets / room)[kept < 0.9].abs().max()) > 0.98
    assert abs(float((offsets / room)[kept < 0.9].mean())) < 0.05


def test_shear_is_along_rows_or_columns_up_to_its_range() -> None:
    maps, _ = source_maps(Augmentation(shear=0.4), 1000, 9, 12)
    slopes = maps - torch.eye(2)
    torch.testing.assert_close(slopes.diagonal(dim1=1, dim2=2), torch.zeros(1000, 2).double())
    assert torch.all(slopes[:, 0, 1].abs().minimum(slopes[:, 1, 0].abs()) < 1e-9)
    assert 400 < int((slopes[:, 0, 1].abs() > 1e-9).sum()) < 600
    assert_fills(slopes[:, 0, 1] + slopes[:, 1, 0], 0.4)


def test_geometry_is_one_map_with_the_shift_last() -> None:
    geometry = {"flip": 1.0, "shear": 0.2, "rotate": 30.0, "scale": 0.3}
    alone = [source_maps(Augmentation(**{name: value}), 100, 20, 16)[0] for name, value in geometry.items()]
    maps, offsets = source_maps(Augmentation(**geometry, shift=0.125), 100, 20, 16)
    torch.testing.assert_close(maps, alone[0] @ alone[1] @ alone[2] @ alone[3])
    shifts = -torch.linalg.solve(maps, offsets)
    torch.testing.assert_close(shifts, shifts.round(), atol=1e-6, rtol=0)
    assert sorted(set(shifts[:, 0].round().int().tolist())) == list(range(-2, 3))
    assert sorted(set(shifts[:, 1].round().int().tolist())) == list(range(-3, 4))  # 2.5 pixels, rounded


@pytest.mark.parametrize("shape", [(13, 18), (16, 16), (18, 13)])
def test_views_equal_those_of_scipy(shape: tuple[int, int]) -> None:
    augmentation = Augmentation(rotate=60.0, scale=0.5, shear=0.4, shift=0.2, flip=0.5)
    maps, offsets = source_maps(augmentation, 30, *shape)
    inputs = pictures(30, 3, *shape)
    views = augment(inputs, augmentation, seeded())
    centre = (np.array(shape) - 1) / 2
    for image, view, matrix, offset in zip(inputs, views, maps.numpy(), offsets.numpy(), strict=True):
        matrix, offset = matrix[::-1, ::-1], offset[::-1]  # scipy counts (row, column)
        start = centre - matrix @ centre + offset
        for channel, found in zip(image.numpy(), view.numpy(), strict=True):
            expected = ndimage.affine_transform(channel, matrix, start, order=1, mode="grid-constant")
            np.testing.assert_allclose(found, expected, atol=1e-9)


def test_interpolated_and_copied_pixels_agree() -> None:
    inputs = pictures(40, 3, 32, 32, dtype=torch.float32)
    copied = augment(inputs, Augmentation(shift=0.25, flip=0.5), seeded())
    sampled = augment(inputs, Augmentation(shift=0.25, flip=0.5, rotate=1e-9), seeded())
    torch.testing.assert_close(sampled, copied, atol=1e-4, rtol=0)


def test_large_images_in_single_precision_keep_their_pixels() -> None:
    inputs = pictures(2, 1, 224, 224)
    augmentation = Augmentation(rotate=30.0, shift=0.1)
    precise = augment(inputs, augmentation, seeded())
    torch.testing.assert_close(augment(inputs.float(), augmentation, seeded()).double(), precise, atol=2e-3, rtol=0)


@pytest.mark.parametrize("unit", [1.0, 60.0])
def test_brightness_adds_a_multiple_of_the_root_mean_square(unit: float) -> None:
    inputs = unit * same_picture(1000, 3, 6, 6)
    added = augment(inputs, Augmentation(brightness=0.7), seeded()) - inputs
    torch.testing.assert_close(added, added[:, :1, :1, :1].expand_as(added))
    assert_fills(added[:, 0, 0, 0] / inputs[0].square().mean().sqrt(), 0.7)


def test_contrast_scales_deviations_from_the_own_mean() -> None:
    inputs = same_picture(1000, 3, 6, 6) + 2
    views = augment(inputs, Augmentation(contrast=0.6), seeded())
    torch.testing.assert_close(views.mean((1, 2, 3)), inputs.mean((1, 2, 3)))
    assert_fills(fits(inputs, views) - 1, 0.6)


def test_saturation_scales_deviations_from_grey() -> None:
    inputs = same_picture(1000, 3, 6, 6) + 2
    views = augment(inputs, Augmentation(saturation=0.8), seeded())
    grey = inputs.mean(1, keepdim=True)
    torch.testing.assert_close(views.mean(1, keepdim=True), grey)
    assert_fills(fits(inputs - grey, views - grey) - 1, 0.8)


def test_sharpness_scales_deviations_from_a_blur() -> None:
    image = pictures(3, 6, 7)
    sums = ndimage.uniform_filter(image.numpy(), (1, 3, 3), mode="constant")
    counts = ndimage.uniform_filter(np.ones_like(image), (1, 3, 3), mode="constant")
    blur = torch.from_numpy(sums / counts)
    views = augment(image.expand(1000, -1, -1, -1), Augmentation(sharpness=0.9), seeded())
    deviations = views - blur
    slopes = fits((image - blur).expand_as(views), deviations)
    torch.testing.assert_close(deviations, slopes[:, None, None, None] * (image - blur))
    assert_fills(slopes - 1, 0.9)


def test_inversion_and_grey_happen_as_often_as_asked() -> None:
    inputs = pictures(1000, 3, 4, 4)
    inverted = (augment(inputs, Augmentation(invert=0.4), seeded()) == -inputs).flatten(1).all(1)
    assert 350 < int(inverted.sum()) < 450
    views = augment(inputs, Augmentation(grey=0.4), seeded())
    grey = (views - inputs.mean(1, keepdim=True)).abs().flatten(1).amax(1) < 1e-12
    assert torch.equal(views[~grey], inputs[~grey])
    assert 350 < int(grey.sum()) < 450


@pytest.mark.parametrize("colour", ["saturation", "grey"])
def test_colours_compose_in_the_order_they_are_documented_in(colour: str) -> None:
    def alone(images: Tensor, name: str) -> Tensor:
        return augment(images, Augmentation(**{name: OPTIONAL[name]}), seeded())

    inputs = pictures(30, 3, 8, 8) + 0.5
    sharpened = alone(inputs, "sharpness")
    light = alone(sharpened, "brightness") - sharpened
    expected = -(alone(alone(sharpened, colour), "contrast") + light)
    names = ["sharpness", colour, "contrast", "brightness", "invert"]
    together = augment(inputs, Augmentation(**{name: OPTIONAL[name] for name in names}), seeded())
    torch.testing.assert_close(together, expected)


def test_one_channel_knows_no_colour() -> None:
    inputs = pictures(50, 1, 8, 8)
    assert torch.equal(augment(inputs, Augmentation(saturation=1.0, grey=1.0), seeded()), inputs)
    chosen = Augmentation(saturation=1.0, grey=1.0, invert=1.0, operations=1)
    assert torch.equal(augment(inputs, chosen, seeded()), -inputs)


@pytest.mark.parametrize("shape", [(200, 500), (100, 1, 32, 32)])
def test_noise_and_dropped_entries(shape: tuple[int, ...]) -> None:
    inputs = torch.full(shape, 3.0)
    noise = augment(inputs, Augmentation(noise=0.2), seeded()) - inputs
    assert abs(float(noise.mean())) < 0.005
    assert abs(float(noise.std()) - 0.2) < 0.005
    dropped = augment(inputs, Augmentation(drop=0.3), seeded())
    assert set(dropped.unique().tolist()) == {0.0, 3.0}
    assert abs(float((dropped == 0).float().mean()) - 0.3) < 0.01
    both = augment(inputs, Augmentation(noise=0.2, drop=0.3), seeded())
    assert abs(float((both == 0).float().mean()) - 0.3) < 0.01


def test_vectors_ignore_what_only_images_know() -> None:
    inputs = pictures(10, 20)
    assert torch.equal(
        augment(inputs, EVERYTHING, seeded()), augment(inputs, Augmentation(noise=0.1, drop=0.1), seeded())
    )


def test_cutout_zeroes_a_square_of_up_to_its_side() -> None:
    inputs = torch.ones(2000, 3, 12, 20)
    cut = augment(inputs, Augmentation(cutout=0.5), seeded()) == 0
    assert torch.equal(cut.all(1), cut.any(1))
    cut = cut[:, 0]
    rows, columns = cut.any(2), cut.any(1)
    assert torch.equal(cut, rows[:, :, None] & columns[:, None, :])
    assert all(len(np.flatnonzero(np.diff(row, prepend=0, append=0))) in (0, 2) for row in rows.int().numpy())
    whole = ~(rows[:, [0, -1]].any(1) | columns[:, [0, -1]].any(1))  # not clipped by a border
    heights, widths = rows.sum(1), columns.sum(1)
    assert torch.equal(heights[whole], widths[whole])
    assert sorted(set(heights[whole].tolist())) == list(range(7))
    assert int(heights.max()) == int(widths.max()) == 6
    assert rows.any(0).all()
    assert columns.any(0).all()
    assert abs(float((heights == 0).float().mean()) - 1 / 7) < 0.03


def test_cutout_is_the_last_word() -> None:
    inputs = torch.ones(100, 3, 8, 8)
    plain = augment(inputs, Augmentation(cutout=1.0), seeded()) == 0
    loud = augment(inputs, Augmentation(cutout=1.0, noise=1.0, brightness=1.0, rotate=10.0), seeded())
    assert plain.any()
    assert torch.all(loud[plain] == 0)


@pytest.mark.parametrize(("operations", "channels"), [(1, 3), (2, 3), (2, 1), (8, 3)])
def test_each_image_gets_as_many_operations_as_asked_any_ones(operations: int, channels: int) -> None:
    """A view equals the one that its own choice gives, alone and without choosing: amounts do not depend on it."""
    count = 400
    inputs = same_picture(count, channels, 10, 10)
    views = augment(inputs, Augmentation(**OPTIONAL, **ALWAYS, operations=operations), seeded())
    names = [name for name in OPTIONAL if channels == 3 or name not in ("saturation", "grey")]
    subsets = list(itertools.combinations(names, operations))
    explained = torch.zeros(count, dtype=torch.int64)
    seen = []
    for subset in subsets:
        alone = Augmentation(**{name: OPTIONAL[name] for name in subset}, **ALWAYS)
        alike = (augment(inputs, alone, seeded()) - views).abs().flatten(1).amax(1) < 1e-9
        explained += alike
        seen.append(int(alike.sum()))
    assert torch.all(explained == 1)
    assert min(seen) >= 0.3 * count / len(subsets)


def test_what_is_not_chosen_leaves_no_trace() -> None:
    inputs = pictures(300, 3, 8, 8, dtype=torch.float32)
    views = augment(inputs, Augmentation(brightness=1.0, contrast=1.0, invert=1.0, operations=1), seeded())
    inverted = (views == -inputs).flatten(1).all(1)
    assert 70 < int(inverted.sum()) < 130
    rare = Augmentation(invert=1e-9, grey=1e-9, operations=1)
    assert torch.equal(augment(inputs, rare, seeded()), inputs)


def test_more_operations_than_there_are_means_all() -> None:
    inputs = pictures(20, 3, 8, 8)
    every = augment(inputs, Augmentation(**OPTIONAL), seeded())
    assert torch.equal(augment(inputs, Augmentation(**OPTIONAL, operations=9), seeded()), every)
    assert torch.equal(augment(inputs, Augmentation(**OPTIONAL, operations=50), seeded()), every)
