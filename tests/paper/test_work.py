"""What a fit keeps for figures, and what its record says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from semimetric.data import Dataset, Examples, load_dataset
from semimetric.paper.cells import Cell, code_version
from semimetric.paper.work import LOGGED, Place, map_of, neighbors_of, run_cell, stratified


def test_a_sample_has_the_same_share_of_each_class() -> None:
    labels = torch.cat([torch.full((400,), 0), torch.full((200,), 1), torch.full((100,), 2)])
    labels = labels[torch.randperm(700, generator=torch.Generator().manual_seed(3))]
    rows = stratified(labels, 70)
    assert torch.bincount(labels[rows]).tolist() == [40, 20, 10]
    assert rows.tolist() == sorted({*rows.tolist()})
    assert torch.equal(rows, stratified(labels, 70))
    assert not torch.equal(rows, torch.arange(70))


def test_a_small_set_is_taken_whole_and_a_rare_class_is_not_lost() -> None:
    assert torch.equal(stratified(torch.tensor([1, 0, 1]), 3), torch.arange(3))
    labels = torch.tensor([0] * 99 + [1])
    assert 1 in labels[stratified(labels, 10)]


@pytest.fixture
def clusters(make_clusters) -> tuple[torch.Tensor, Dataset]:
    points, labels = make_clusters(0, 60, 8, 3, 0.1)
    examples = Examples(points, labels)
    return points, Dataset("clusters", examples, examples, ("1.ape", "2.bee"))


def test_a_map_keeps_classes_together_and_is_the_same_each_time(clusters) -> None:
    points, dataset = clusters
    found = map_of(points, dataset)
    assert found["rows"] == list(range(60))
    assert found["labels"] == dataset.test.labels.tolist()
    assert found == map_of(points, dataset) == json.loads(json.dumps(found))
    places, labels = np.array(found["points"]), np.array(found["labels"])
    apart = np.linalg.norm(places[:, None] - places[None], axis=2) + 1e9 * np.eye(60)
    assert (labels[apart.argmin(1)] == labels).mean() > 0.9


def test_the_neighbours_of_a_few_queries_are_the_nearest_by_brute_force(clusters) -> None:
    points, dataset = clusters
    found = neighbors_of(points, dataset)
    apart = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf)
    assert len(found["queries"]) == len(found["hits"]) == 6
    for query, hits in zip(found["queries"], found["hits"], strict=True):
        assert [hit["row"] for hit in hits] == apart[query["row"]].argsort()[:8].tolist()
        for entry in (query, *hits):
            assert entry["label"] == int(dataset.test.labels[entry["row"]])
            assert entry["name"] == ("1.ape", "2.bee", "2")[entry["label"]]
    turned = neighbors_of(-points.flip(1), dataset)
    assert turned == found  # the queries are those of every method, and distances are the same


def test_few_examples_have_fewer_neighbours(clusters) -> None:
    points, dataset = clusters
    few = Dataset("few", dataset.train, dataset.test.subset(range(5)), ())
    assert [len(hits) for hits in neighbors_of(points[:5], few)["hits"]] == [4] * 5


def test_a_record_says_how_it_came_about(tmp_path: Path) -> None:
    cell = Cell("digits", "lrml", 1, settings={"epochs": 0}, keeps=("map", "neighbors"))
    place = Place(tmp_path, device="cpu")
    record = run_cell(cell, place)
    assert json.loads(json.dumps(record)) == record
    assert record["key"] == place.key(cell)
    assert (record["command"], record["code"], record["data"]) == (cell.command(), code_version(), "built in")
    assert record["plan"]["training"]["epochs"] == record["epochs"] == record["best_epoch"] == 0
    assert record["initial"] == record["final"]
    assert 0.5 < record["final"]["recall@1"] < 1
    assert record["hardware"]["threads"] == 1
    assert {*record["kept"]} == {"map", "neighbors"}
    assert record["kept"]["map"]["rows"] == list(range(len(load_dataset("digits").test)))
    assert {*record["history"][0]} <= {*LOGGED}
    assert list((tmp_path / "unfinished").iterdir()) == []
    hidden = run_cell(Cell("digits", "lrml", 1, settings={"epochs": 0}, scored=False), place)
    assert not {"initial", "final"} & {*hidden}
    assert hidden["history"][0]["selection_recall@1"] > 0.5
