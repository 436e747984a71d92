"""Presets of augmented views, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from helpers.views import ALWAYS, EVERYTHING, KINDS, OPTIONAL, STRENGTHS, pictures, seeded

from semimetric.core.errors import InputError
from semimetric.data.augmentation import Augmentation, augment, check_augmentation, rotate_quarters
from semimetric.data.views import STRONG, WEAK, augmentation_for


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
    assert augmentation_for("objects", "strong").operations == 0
    assert augmentation_for("objects", "strong").scale == 0.6
    assert augmentation_for("objects", "strong").cutout == 0.25
    assert augmentation_for("photographs", "weak") == Augmentation(flip=0.5)
    assert augmentation_for("photographs", "strong").scale < augmentation_for("objects", "strong").scale
    assert augmentation_for("vectors", "weak") == Augmentation(noise=0.05)
    assert augmentation_for("vectors", "strong") == Augmentation(noise=0.15, drop=0.2)
    assert list(WEAK) == list(STRONG) == [*KINDS[:2], "randaugment", *KINDS[2:]]
    with pytest.raises(InputError, match=r"kind must be one of digits, objects, randaugment, .*, vectors, got 'faces'"):
        augmentation_for("faces", "weak")
    with pytest.raises(InputError, match="strength must be one of weak, strong, got 'medium'"):
        augmentation_for("digits", "medium")


def test_presets_suit_their_kinds() -> None:
    for strength, shape in itertools.product(
        STRENGTHS, [(5, 1, 8, 8), (5, 1, 28, 28), (5, 3, 32, 32), (5, 3, 224, 224)]
    ):
        check_augmentation(augmentation_for("digits", strength), shape)
        check_augmentation(augmentation_for("objects", strength), shape)
        check_augmentation(augmentation_for("photographs", strength), shape)
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
