from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from semimetric.data.augment import (
    STRONG,
    WEAK,
    Augmentation,
    augment,
    augmentation_for,
    check_augmentation,
    rotate_quarters,
)
from semimetric.errors import InputError
from semimetric.metric import GraphedFunction

OPTIONAL = {
    "rotate": 25.0,
    "scale": 0.5,
    "shear": 0.3,
    "brightness": 0.7,
    "contrast": 0.6,
    "saturation": 0.8,
    "sharpness": 0.9,
    "invert": 1.0,
    "grey": 1.0,
}
ALWAYS = {"shift": 0.2, "flip": 0.5, "cutout": 0.4, "noise": 0.1, "drop": 0.1}
EVERYTHING = Augmentation(**OPTIONAL, **ALWAYS)
KINDS = ["digits", "objects", "vectors"]
STRENGTHS = ["weak", "strong"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def same_picture(count: int, *shape: int) -> Tensor:
    return pictures(1, *shape).expand(count, *shape)


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


class OnlyOnDevice(TorchDispatchMode):
    """Raises when a tensor of the host takes part: on a GPU it would be copied there, which no recording allows."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        hosted = [
            leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.device.type == "cpu"
        ]
        if hosted:
            raise AssertionError(f"{func} takes a tensor of the host")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("operations", [0, 2])
@pytest.mark.parametrize("shape", [(6, 3, 16, 12), (6, 1, 8, 8), (6, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_value_is_read_on_the_host(operations: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """On torch's meta device tensors have shapes and no values, so an operation that asks for a value raises."""
    inputs = torch.empty(shape, device="meta", dtype=dtype)
    with OnlyOnDevice():
        view = augment(inputs, dataclasses.replace(EVERYTHING, operations=operations))
    assert (view.shape, view.dtype, view.device) == (inputs.shape, inputs.dtype, inputs.device)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_presets_read_no_value_on_the_host(kind: str, strength: str) -> None:
    inputs = torch.empty((6, 10) if kind == "vectors" else (6, 3, 32, 32), device="meta")
    with OnlyOnDevice():
        assert augment(inputs, augmentation_for(kind, strength)).shape == inputs.shape
        if kind != "vectors":
            assert rotate_quarters(inputs, torch.empty(6, dtype=torch.int64, device="meta")).shape == inputs.shape


def test_the_meta_device_would_notice() -> None:
    with OnlyOnDevice(), pytest.raises((RuntimeError, NotImplementedError)):
        float(torch.empty(3, device="meta").sum())
    with OnlyOnDevice(), pytest.raises(AssertionError, match="of the host"):
        torch.where(torch.empty(3, dtype=torch.bool, device="meta"), torch.empty(3, device="meta"), torch.tensor(0.0))


def test_a_strong_view_is_a_dozen_passes_over_the_images() -> None:
    class Passes(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            copies = isinstance(result, Tensor) and not func.is_view
            self.count += copies and result.numel() >= 64 * 16 * 16
            return result

    inputs = pictures(64, 3, 16, 16)
    with Passes() as passes:
        augment(inputs, STRONG["objects"], seeded())
    assert passes.count <= 12


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_replays_of_a_recorded_view_are_new_draws_that_a_seed_repeats(kind: str) -> None:
    inputs = (torch.randn(64, 10) if kind == "vectors" else torch.randn(64, 3, 32, 32)).cuda()
    turns = torch.randint(0, 4, (64,), device="cuda")
    strong = augmentation_for(kind, "strong")

    def view(images: Tensor, turns: Tensor) -> tuple[Tensor, ...]:
        return (augment(images if kind == "vectors" else rotate_quarters(images, turns), strong),)

    recorded = GraphedFunction(view)
    recorded(inputs, turns)
    torch.cuda.manual_seed(0)
    (first,), (second,) = recorded(inputs, turns), recorded(inputs, turns)
    assert not torch.equal(first, second)
    torch.cuda.manual_seed(0)
    assert torch.equal(recorded(inputs, turns)[0], first)


@pytest.mark.gpu
def test_gpu_views_stay_on_the_gpu_and_repeat() -> None:
    inputs = pictures(64, 3, 32, 32, dtype=torch.float32).cuda()
    first, second = (augment(inputs, EVERYTHING, torch.Generator("cuda").manual_seed(0)) for _ in range(2))
    assert first.is_cuda
    assert torch.equal(first, second)
    with pytest.raises(InputError, match="on the device of the inputs"):
        augment(inputs, EVERYTHING, seeded())


def up_to(largest: float) -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), st.floats(0, largest))


LARGEST = dict.fromkeys([*OPTIONAL, *ALWAYS], 1.0) | {"rotate": 180.0, "scale": 4.0, "brightness": 3.0, "noise": 3.0}
AUGMENTATIONS = st.builds(Augmentation, **{name: up_to(largest) for name, largest in LARGEST.items()})
SHAPES = st.one_of(
    st.tuples(st.integers(0, 4), st.integers(1, 9)),
    st.tuples(st.integers(0, 4), st.sampled_from([1, 3]), st.integers(8, 17), st.integers(8, 17)),
)


@settings(max_examples=150, deadline=None)
@given(
    AUGMENTATIONS, SHAPES, st.integers(0, 12), st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64])
)
def test_any_view_is_finite_of_the_same_kind_and_leaves_its_inputs_alone(
    augmentation: Augmentation, shape: tuple[int, ...], operations: int, seed: int, dtype: torch.dtype
) -> None:
    if any(getattr(augmentation, name) for name in OPTIONAL):
        augmentation = dataclasses.replace(augmentation, operations=operations)
    inputs = pictures(*shape, dtype=dtype)
    before = inputs.clone()
    view = augment(inputs, augmentation, seeded(seed))
    assert (view.shape, view.dtype) == (inputs.shape, dtype)
    assert torch.isfinite(view).all()
    assert torch.equal(inputs, before)
    assert torch.equal(view, augment(inputs, augmentation, seeded(seed)))


@settings(max_examples=50, deadline=None)
@given(SHAPES.filter(lambda shape: len(shape) == 4), st.integers(0, 2**31))
def test_geometry_makes_no_value_larger_and_commutes_with_scaling(shape: tuple[int, ...], seed: int) -> None:
    geometry = Augmentation(rotate=180.0, scale=1.0, shear=0.5, shift=0.5, flip=0.5, cutout=0.5)
    inputs = pictures(*shape, seed=seed)
    view = augment(inputs, geometry, seeded(seed))
    most = inputs.abs().flatten(1).amax(1)[:, None, None, None]
    assert torch.all(view.abs() <= most * (1 + 1e-9))
    torch.testing.assert_close(augment(-4 * inputs, geometry, seeded(seed)), -4 * view)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(0, 6), st.sampled_from([1, 3]), st.integers(0, 2**31))
def test_quarter_turns_equal_torch(side: int, count: int, channels: int, seed: int) -> None:
    images = pictures(count, channels, side, side, seed=seed)
    turns = torch.randint(-8, 9, (count,), generator=seeded(seed))
    found = rotate_quarters(images, turns)
    for image, turn, view in zip(images, turns.tolist(), found, strict=True):
        assert torch.equal(view, torch.rot90(image, turn, (1, 2)))
    assert torch.equal(rotate_quarters(found, -turns), images)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_torchs_default_type_has_no_say(default: torch.dtype) -> None:
    inputs = pictures(6, 3, 9, 9, dtype=torch.float32)
    expected = augment(inputs, EVERYTHING, seeded())
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = augment(inputs, EVERYTHING, seeded())
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, expected)


def test_strided_images_give_the_same_views() -> None:
    inputs = pictures(6, 3, 9, 9)
    strided = inputs.transpose(2, 3).contiguous().transpose(2, 3)
    last = inputs.contiguous(memory_format=torch.channels_last)
    expected = augment(inputs, EVERYTHING, seeded())
    torch.testing.assert_close(augment(strided, EVERYTHING, seeded()), expected)
    torch.testing.assert_close(augment(last, EVERYTHING, seeded()), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_strong_views_are_further_from_the_example(kind: str) -> None:
    inputs = pictures(*((200, 20) if kind == "vectors" else (200, 3, 32, 32)))
    if kind != "vectors":
        inputs = torch.nn.functional.avg_pool2d(inputs, 9, stride=1, padding=4) * 9
    apart = [
        float((augment(inputs, augmentation_for(kind, strength), seeded()) - inputs).norm()) for strength in STRENGTHS
    ]
    assert 0 < apart[0] < apart[1]


def test_presets_are_what_they_are_said_to_be() -> None:
    assert augmentation_for("digits", "weak").flip == augmentation_for("digits", "strong").flip == 0
    assert augmentation_for("objects", "weak") == Augmentation(flip=0.5, shift=0.125)
    assert augmentation_for("objects", "strong").operations == 2
    assert augmentation_for("objects", "strong").cutout == 0.5
    assert augmentation_for("vectors", "weak") == Augmentation(noise=0.05)
    assert augmentation_for("vectors", "strong") == Augmentation(noise=0.15, drop=0.2)
    assert list(WEAK) == list(STRONG) == KINDS
    with pytest.raises(InputError, match="kind must be one of digits, objects, vectors, got 'faces'"):
        augmentation_for("faces", "weak")
    with pytest.raises(InputError, match="strength must be one of weak, strong, got 'medium'"):
        augmentation_for("digits", "medium")


def test_presets_suit_their_kinds() -> None:
    for strength, shape in itertools.product(
        STRENGTHS, [(5, 1, 8, 8), (5, 1, 28, 28), (5, 3, 32, 32), (5, 3, 224, 224)]
    ):
        check_augmentation(augmentation_for("digits", strength), shape)
        check_augmentation(augmentation_for("objects", strength), shape)
    check_augmentation(augmentation_for("vectors", "weak"), (5, 3))
    check_augmentation(augmentation_for("vectors", "weak"), (5, 3, 8, 8))


@pytest.mark.parametrize(
    ("augmentation", "shape", "words"),
    [
        (Augmentation(), (5, 3), "every operation is off"),
        (Augmentation(flip=0.5, shift=0.1), (5, 3), "only shift, flip is on, and vectors know noise and drop alone"),
        (Augmentation(grey=0.5), (5, 1, 8, 8), "only grey is on, and saturation and grey need 3 channels"),
        (Augmentation(shift=0.05), (5, 1, 8, 8), "at least half a pixel"),
        (Augmentation(cutout=0.05), (5, 1, 8, 8), "at least half a pixel"),
        (Augmentation(noise=0.1), (5, 3, 8), r"vectors \(N, d\) or images \(N, C, H, W\)"),
    ],
)
def test_an_augmentation_without_effect_is_refused(augmentation: Augmentation, shape: tuple, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_augmentation(augmentation, shape)


@pytest.mark.parametrize("name", [*OPTIONAL, *ALWAYS])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), 1e3])
def test_values_out_of_range_are_named(name: str, value: float) -> None:
    if value == 1e3 and name in ("brightness", "noise"):
        pytest.skip("as large as one likes")
    with pytest.raises(InputError, match=f"^{name} must be .*, got {value}; 0 switches it off"):
        Augmentation(**{name: value})


def test_operations_that_make_no_sense_are_named() -> None:
    for value in (-1, 1.5):
        with pytest.raises(InputError, match=f"operations must be a whole number of at least 0, got {value}"):
            Augmentation(flip=0.5, operations=value)
    with pytest.raises(InputError, match="operations is 2, but none of the operations to choose from is on"):
        Augmentation(flip=0.5, operations=2)


def test_every_setting_says_what_it_does() -> None:
    for field in dataclasses.fields(Augmentation):
        assert field.metadata["help"].endswith(".")
        assert field.default == 0


def test_inputs_that_cannot_be_augmented_are_refused() -> None:
    with pytest.raises(InputError, match=r"got shape \(2, 3, 4\)"):
        augment(torch.zeros(2, 3, 4), EVERYTHING)
    with pytest.raises(InputError, match=r"got torch\.uint8; apply the preprocessing first"):
        augment(torch.zeros(2, 3, dtype=torch.uint8), EVERYTHING)
    with pytest.raises(InputError, match="generator must be on the device of the inputs, meta, got one on cpu"):
        augment(torch.zeros(2, 3, device="meta"), EVERYTHING, seeded())


def test_turns_and_images_that_do_not_fit_are_refused() -> None:
    square = torch.zeros(2, 1, 4, 4)
    with pytest.raises(InputError, match=r"images must be square, .* got shape \(2, 1, 4, 5\)"):
        rotate_quarters(torch.zeros(2, 1, 4, 5), torch.zeros(2, dtype=torch.int64))
    for turns in (torch.zeros(3, dtype=torch.int64), torch.zeros(2), torch.zeros(2, dtype=torch.bool)):
        with pytest.raises(InputError, match="turns must be one whole number per image"):
            rotate_quarters(square, turns)
