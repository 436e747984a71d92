from __future__ import annotations

import torch

from semimetric.evaluation.audit import held_out_predictions, likely_errors, near_duplicates, outliers
from semimetric.model.fitted import posteriors_of


def test_a_wrong_label_is_the_first_likely_error(make_clusters) -> None:
    points, classes = make_clusters(0, 90, 16, 3, spread=0.1)
    labels = torch.where(torch.arange(90) < 45, classes, -1)
    labels[7] = (classes[7] + 1) % 3
    found = held_out_predictions(lambda known: posteriors_of(points, known), labels)
    assert found.rows.tolist() == list(range(45))
    errors = likely_errors(found, labels)
    assert errors.rows[0] == 7
    assert errors.predicted[0] == classes[7]
    assert (errors.probability.diff() <= 0).all()


def test_a_copy_is_a_near_duplicate_and_counts_once(make_clusters) -> None:
    points, _ = make_clusters(1, 60, 8, 3)
    points[41] = points[5]
    points[12] = points[30] + 1e-4
    pairs = near_duplicates(points)
    assert pairs.rows.tolist() == [[5, 41], [12, 30]]
    assert pairs.distances[0] == 0
    torch.testing.assert_close(pairs.distances[1], (points[12] - points[30]).double().norm())


def test_without_copies_there_are_no_near_duplicates(make_clusters) -> None:
    assert len(near_duplicates(make_clusters(1, 60, 8, 3)[0]).rows) == 0


def test_the_farthest_example_is_the_first_outlier(make_clusters) -> None:
    points, _ = make_clusters(2, 60, 8, 3, spread=0.05)
    points[17] = -5.0
    found = outliers(points, 4)
    assert found.rows[0] == 17
    assert found.scores[0] > 5
    distances = torch.cdist(points.double(), points.double()).sort(1).values[:, 1:11].mean(1)
    torch.testing.assert_close(found.scores, (distances / distances.median()).sort(descending=True).values[:4])
