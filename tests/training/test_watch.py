from __future__ import annotations

import json

import pytest
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.evaluation import Spread
from semimetric.training.watch import Watch

START = Spread(1.0, 20.0)
SHRUNK, FLAT = Spread(0.05, 18.0), Spread(0.9, 1.1)
Look = tuple[Spread, float | None, float | None, float | None]

shares = st.none() | st.sampled_from([0.0, 0.01, 0.3, 0.9])
looks = st.tuples(st.sampled_from([START, SHRUNK, FLAT, Spread(0.0, 0.0)]), shares, shares, shares)


def restored(watch: Watch) -> Watch:
    return Watch.restore(json.loads(json.dumps(watch.state())))


@given(st.integers(2, 4), st.lists(looks, max_size=6), st.integers(0, 6))
@draws(150)
def test_it_goes_on_from_json_as_if_it_had_not_stopped(classes: int, epochs: list[Look], stop: int) -> None:
    whole, parts = Watch(classes), Watch(classes)
    for epoch, look in enumerate(epochs):
        if epoch == stop:
            parts = restored(parts)
        assert whole.look(*look) == parts.look(*look)
        assert whole == parts
    assert restored(whole) == whole


def test_what_it_remembers_survives_json() -> None:
    watch = Watch(3)
    assert restored(watch) == watch  # before it has seen anything
    watch.look(START, None, None, 0.02)
    watch.look(START, 0.9, 0.5, 0.03)
    again = restored(watch)
    assert (again.classes, again.start, again.start_active) == (3, START, 0.02)
    assert (again.declining, again.warned, again.collapsed) == (True, False, False)
    assert again.look(START, 0.9, 0.5, 0.03) == [
        "the embedding is degrading: its selection score fell from 0.900 to 0.500."
    ]
    assert restored(again).look(SHRUNK, 0.9, 0.1, 0.9) == []  # it has been said


SIGNS = {
    "distance": ((SHRUNK, None, None, None), "mean squared distance fell from 1 to 0.05"),
    "rank": ((FLAT, None, None, None), "effective rank fell from 20.0 to 1.1"),
    "score": ((START, 0.9, 0.5, None), "selection score fell from 0.900 to 0.500"),
    "violated": ((START, None, None, 0.4), "40 % of the constraints are violated, up from 0.0 %"),
}


def watching(classes: int) -> Watch:
    """After an ordinary first epoch without a violated constraint, and a score that has fallen once."""
    watch = Watch(classes)
    assert watch.look(START, None, 0.9, 0.0) == []
    assert watch.look(START, 0.9, 0.5, 0.05) == []
    return watch


@pytest.mark.parametrize("first", SIGNS)
def test_one_sentence_is_said_in_a_run_and_no_second(first: str) -> None:
    watch = watching(3)
    look, words = SIGNS[first]
    (said,) = watch.look(*look)
    assert words in said
    for again, _ in (*SIGNS.values(), *SIGNS.values()):
        assert watch.look(*again) == []


def test_of_several_signs_one_is_said() -> None:
    watch = watching(3)
    (said,) = watch.look(SHRUNK, 0.9, 0.5, 0.4)
    assert "mean squared distance" in said


@pytest.mark.parametrize("sign", SIGNS)
def test_two_classes_may_lie_in_one_direction_and_nothing_else(sign: str) -> None:
    look, words = SIGNS[sign]
    said = watching(2).look(*look)
    assert said == [] if sign == "rank" else words in said[0]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_single_point_stops_training_whatever_was_said(classes: int) -> None:
    watch = watching(classes)
    watch.look(SHRUNK, None, None, None)
    assert not watch.collapsed
    watch.look(Spread(0.0, 0.0), None, None, None)
    assert watch.collapsed
    assert restored(watch).collapsed
