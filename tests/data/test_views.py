"""Views of a batch: several augmentations in order, vectors in units of their columns, kinds by shape."""

from __future__ import annotations

import pytest
import torch
from helpers.views import KINDS, STRENGTHS, pictures
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.data import Augmentation, Views, augment, augmentation_for, kind_of, preset_views
from semimetric.data.views import VIEW_KINDS

NOISE = Augmentation(noise=0.1, drop=0.3)
SHIFTS = Augmentation(shift=0.25)
MIRROR = Augmentation(flip=1.0)
SCALES = torch.tensor([1e-3, 1.0, 50.0, 1e4])
"""Deviations of columns in units that have nothing to do with each other."""


def table(rows: int, seed: int = 0) -> Tensor:
    return pictures(rows, 4, seed=seed) * SCALES + 3 * SCALES


def seen(views: Views, inputs: Tensor, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return views(inputs)


def test_vectors_are_disturbed_in_units_of_the_deviation_of_their_columns() -> None:
    inputs, batch = table(200), table(30, seed=1)
    found = seen(Views(inputs, [NOISE]), batch)
    torch.manual_seed(0)
    centre, spread = inputs.mean(0), inputs.std(0)  # of all examples, not of the batch
    expected = augment((batch - centre) / spread, NOISE) * spread + centre
    torch.testing.assert_close(found, expected)


def test_noise_of_a_column_is_as_large_as_its_deviation_says() -> None:
    inputs = table(4000)
    added = (seen(Views(inputs, [Augmentation(noise=0.2)]), inputs) - inputs) / SCALES
    torch.testing.assert_close(added.std(0), torch.full((4,), 0.2).double(), rtol=0.1, atol=0)


def test_a_dropped_entry_becomes_the_mean_of_its_column() -> None:
    inputs = table(300)
    found = seen(Views(inputs, [Augmentation(drop=0.3)]), inputs)
    dropped = torch.isclose(found, inputs.mean(0), rtol=1e-9, atol=0)
    torch.testing.assert_close(found[~dropped], inputs[~dropped])
    assert 0.25 < float(dropped.double().mean()) < 0.35


def test_a_constant_column_stays_what_it_is() -> None:
    inputs = torch.cat([table(50), torch.full((50, 1), 7.0)], dim=1)
    found = seen(Views(inputs, [NOISE]), inputs)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[:, 4], inputs[:, 4])


def test_images_are_scaled_already() -> None:
    images = 5 * pictures(20, 3, 8, 8) + 2
    found = seen(Views(images, [NOISE]), images)
    torch.manual_seed(0)
    assert torch.equal(found, augment(images, NOISE))


@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 8, 8), (6, 1, 4, 9), (6, 4, 5), (6, 2, 2, 3, 3)])
def test_none_leaves_inputs_of_any_shape_as_they_are(shape: tuple[int, ...]) -> None:
    inputs = pictures(*shape)
    before = torch.get_rng_state()
    assert torch.equal(Views(inputs, [None])(inputs), inputs)
    assert torch.equal(Views(inputs, [None, None])(inputs), torch.cat([inputs, inputs]))
    assert torch.equal(torch.get_rng_state(), before)


def test_all_first_views_come_before_all_second_ones() -> None:
    images = pictures(7, 1, 8, 8)
    as_it_is, mirrored, shifted = seen(Views(images, [None, MIRROR, SHIFTS]), images).split(7)
    assert torch.equal(as_it_is, images)
    assert torch.equal(mirrored, images.flip(3))
    torch.manual_seed(0)
    augment(images, MIRROR)  # draws before the shifts do
    assert torch.equal(shifted, augment(images, SHIFTS))


def test_two_views_of_the_same_augmentation_differ_and_a_seed_repeats_them() -> None:
    images = pictures(20, 1, 8, 8)
    views = Views(images, [SHIFTS, SHIFTS])
    first, second = seen(views, images).split(20)
    assert not torch.equal(first, second)
    assert torch.equal(seen(views, images), torch.cat([first, second]))
    assert not torch.equal(seen(views, images, seed=1), torch.cat([first, second]))


def test_an_augmentation_without_effect_is_refused_wherever_it_stands() -> None:
    with pytest.raises(InputError, match="vectors know noise and drop alone"):
        Views(table(5), [None, SHIFTS])
    with pytest.raises(InputError, match="every operation is off"):
        Views(pictures(5, 1, 8, 8), [Augmentation()])
    with pytest.raises(InputError, match=r"vectors \(N, d\) or images \(N, C, H, W\) to be augmented"):
        Views(pictures(5, 3, 4), [NOISE])


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((5, 9), "vectors"),
        ((5, 3), "vectors"),
        ((5, 1, 8, 8), "digits"),
        ((5, 2, 8, 8), "digits"),
        ((5, 4, 8, 8), "digits"),
        ((5, 3, 8, 8), "objects"),
    ],
)
def test_the_kind_is_read_off_the_shape(shape: tuple[int, ...], kind: str) -> None:
    assert kind_of(torch.zeros(shape)) == kind
    views = preset_views(pictures(*shape), "auto", ("strong", "weak"))
    assert views.augmentations == (augmentation_for(kind, "strong"), augmentation_for(kind, "weak"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_a_named_kind_wins_over_the_shape(kind: str, strength: str) -> None:
    inputs = pictures(5, 16) if kind == "vectors" else pictures(5, 1, 16, 16)
    views = preset_views(inputs, kind, (strength,))
    assert views.augmentations == (augmentation_for(kind, strength),)
    assert not torch.equal(seen(views, inputs), inputs)


def test_no_views_are_the_examples_once_for_each_strength() -> None:
    inputs = pictures(5, 3, 4)
    views = preset_views(inputs, "none", ("weak", "strong", "strong"))
    assert views.augmentations == (None, None, None)
    assert torch.equal(views(inputs), inputs.repeat(3, 1, 1))


def test_unknown_kinds_are_refused_with_the_known_ones() -> None:
    known = "auto, digits, objects, randaugment, photographs, crops, vectors, none"
    assert ", ".join(VIEW_KINDS) == known
    with pytest.raises(InputError, match=f"^augmentation must be one of {known}, got 'faces'"):
        preset_views(pictures(5, 1, 8, 8), "faces", ("weak",))
    with pytest.raises(InputError, match=r"^strength must be one of weak, strong, got 'medium'"):
        preset_views(pictures(5, 1, 8, 8), "digits", ("medium",))


@pytest.mark.parametrize("shape", [(6, 5), (6, 1, 8, 8)])
def test_its_state_is_centre_and_spread_alone_and_moves_with_it(shape: tuple[int, ...]) -> None:
    inputs = pictures(*shape)
    views = Views(inputs, [NOISE])
    assert list(views.state_dict()) == ["centre", "spread"]
    assert not list(views.parameters())
    views.to(torch.float32)
    assert views.centre.dtype == views.spread.dtype == torch.float32
    views.to("meta")
    assert views.centre.is_meta
    assert views.spread.is_meta
    assert views(inputs.to("meta")).is_meta


def test_a_restored_state_gives_the_same_views() -> None:
    inputs, batch = table(100), table(10, seed=1)
    views, others = Views(inputs, [NOISE]), Views(table(100, seed=2), [NOISE])
    expected = seen(views, batch)
    assert not torch.equal(seen(others, batch), expected)
    others.load_state_dict(views.state_dict())
    assert torch.equal(seen(others, batch), expected)


def test_tiny_images_are_refused_only_where_no_view_changes_them() -> None:
    images = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    assert len(preset_views(images, "digits", ("weak", "strong"))(images)) == 10  # too small to be shifted weakly
    with pytest.raises(InputError, match=r"nothing to do for inputs of shape.*go without \(augmentation 'none'\)"):
        preset_views(images, "digits", ("weak",))
