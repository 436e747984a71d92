"""Views on any device, in any type: nothing read on the host, nothing that depends on the layout."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.device import OnlyOnDevice
from helpers.draws import draws
from helpers.views import ALWAYS, EVERYTHING, KINDS, OPTIONAL, STRENGTHS, pictures, seeded
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from semimetric.core.errors import InputError
from semimetric.data.augmentation import Augmentation, augment, rotate_quarters
from semimetric.data.views import STRONG, augmentation_for
from semimetric.metric import GraphedFunction


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
    with OnlyOnDevice(), pytest.raises(RuntimeError):
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


@draws(150)
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


@draws(50)
@given(SHAPES.filter(lambda shape: len(shape) == 4), st.integers(0, 2**31))
def test_geometry_makes_no_value_larger_and_commutes_with_scaling(shape: tuple[int, ...], seed: int) -> None:
    geometry = Augmentation(rotate=180.0, scale=1.0, shear=0.5, shift=0.5, flip=0.5, cutout=0.5)
    inputs = pictures(*shape, seed=seed)
    view = augment(inputs, geometry, seeded(seed))
    most = inputs.abs().flatten(1).amax(1)[:, None, None, None]
    assert torch.all(view.abs() <= most * (1 + 1e-9))
    torch.testing.assert_close(augment(-4 * inputs, geometry, seeded(seed)), -4 * view)


@draws(50)
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
