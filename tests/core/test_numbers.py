"""No number is wrong without a word: what cannot be computed is refused by a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.core.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")
FEATURES, CLASSES = load_wine(return_X_y=True)
LABELS = np.where(np.arange(178) % 4 == 0, CLASSES, -1)
SCALED = (FEATURES - FEATURES.mean(0)) / FEATURES.std(0)


@pytest.fixture(scope="module")
def models() -> list[Any]:
    network = sm.SemiMetric(epochs=1, encoder="mlp").fit(FEATURES, LABELS)
    return [sm.LRML(n_components=3).fit(FEATURES, LABELS), network]


@pytest.mark.parametrize("value", [1e39, 1e155, 1e200, 1e300, -3.4e38])
def test_far_values_give_numbers_or_a_refusal(models: list[Any], value: float) -> None:
    queries = FEATURES[:3].copy()
    queries[0, 0] = value
    for model in models:
        for answer in (model.transform, model.predict_proba):
            refused = None
            try:
                assert np.isfinite(answer(queries)).all()
            except InputError as error:
                refused = str(error)
            assert refused is None or "missing data" in refused


@pytest.mark.parametrize("scale", [1e-300, 1e-155, 1e155, 1e300])
def test_neighbours_do_not_depend_on_the_scale(scale: float) -> None:
    expected = sm.nearest_neighbors(SCALED, 5)
    assert torch.equal(sm.nearest_neighbors(SCALED * scale, 5), expected)


def test_suggestions_beyond_the_range_are_refused() -> None:
    with pytest.raises(InputError, match="too far from 1 for their squares"):
        sm.suggest(SCALED * 1e155, LABELS, np.full((178, 3), 1 / 3), np.zeros(178), 3)


def test_masks_are_not_ignored() -> None:
    hidden = np.ma.masked_array(FEATURES, mask=FEATURES > 1000)
    for call in (
        lambda: sm.LRML().fit(hidden, LABELS),
        lambda: sm.nearest_neighbors(hidden, 3),
        lambda: sm.LRML().fit(FEATURES, np.ma.masked_array(LABELS, mask=LABELS == 0)),
    ):
        with pytest.raises(InputError, match="masked entries"):
            call()
    whole = np.ma.masked_array(FEATURES, mask=np.zeros_like(FEATURES, dtype=bool))
    assert sm.nearest_neighbors(whole, 3).shape == (178, 3)


@pytest.mark.parametrize("estimator", [sm.LRML(), sm.SemiMetric(epochs=1, encoder="mlp")])
def test_labels_below_minus_one_are_refused_alike(estimator: Any) -> None:
    with pytest.raises(InputError, match=r"must be -1 .unlabelled. or a class"):
        estimator.fit(FEATURES, np.where(LABELS == -1, -2, LABELS))


def test_bad_settings_are_refused_by_a_sentence() -> None:
    for call, told in (
        (lambda: sm.Metric(np.eye(3)), "factor must be a torch tensor, got ndarray"),
        (lambda: sm.nearest_neighbors(SCALED, "3"), "k must be a whole number"),
        (lambda: sm.nearest_neighbors(SCALED, 2.5), "k must be a whole number"),
        (lambda: sm.SemiMetric(encoder="mlp", settings={"lr": 1e300}).fit(FEATURES, LABELS), "lr must be at most 3.4e"),
    ):
        with pytest.raises(InputError, match=told):
            call()
