"""Scores against scikit-learn's own search, clustering and mutual information."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import mutual_info_score, normalized_mutual_info_score
from sklearn.neighbors import NearestNeighbors

from semimetric import nmi, recall_at_k
from semimetric.graph.clustering import kmeans


@pytest.mark.parametrize("seed", range(4))
def test_nmi_equals_scikit_learn_on_the_same_clusters(make_clusters, seed: int) -> None:
    points, labels = make_clusters(seed, 300, 6, 5, 0.3)
    found = kmeans(points, 5, seed=0).assignment.numpy()
    expected = normalized_mutual_info_score(labels.numpy(), found, average_method="arithmetic")
    assert nmi(points, labels) == pytest.approx(expected)
    entropies = [mutual_info_score(x, x) for x in (labels.numpy(), found)]
    assert expected == pytest.approx(2 * mutual_info_score(labels.numpy(), found) / sum(entropies))


@pytest.mark.parametrize("seed", range(4))
def test_nmi_is_that_of_scikit_learn_k_means_where_clusters_are_clear(make_clusters, seed: int) -> None:
    points, labels = make_clusters(seed, 300, 16, 5, 0.1)
    theirs = KMeans(5, n_init=10, random_state=0).fit_predict(points.double().numpy())
    assert nmi(points, labels) == pytest.approx(normalized_mutual_info_score(labels.numpy(), theirs))


@pytest.mark.parametrize("seed", range(4))
def test_recall_equals_scikit_learn_neighbours(make_clusters, seed: int) -> None:
    points, labels = make_clusters(seed, 200, 5, 6)
    neighbours = NearestNeighbors(n_neighbors=8).fit(points.double().numpy()).kneighbors(return_distance=False)
    hits = labels.numpy()[neighbours] == labels.numpy()[:, None]
    expected = {k: float(np.mean(hits[:, :k].any(1))) for k in (1, 2, 4, 8)}
    assert recall_at_k(points, labels) == pytest.approx(expected)
