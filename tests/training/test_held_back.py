from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.graph import Posteriors
from semimetric.training import Run, Trainer, TrainingData, TrainingWarning
from semimetric.training.held_back import HeldBack

CONSENSUS = {"method": "consensus", "optimizer": "adamw", "lr": 1e-3, "selection": "last", "hold_back": 0.25}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labels_of(*counts: int, unlabelled: int = 10) -> Tensor:
    """So many labels of the classes 3, 8, 13, ..., in random order among unlabelled examples."""
    names = torch.tensor([5 * number + 3 for number, count in enumerate(counts) for _ in range(count)])
    every = torch.cat([names, torch.full((unlabelled,), -1)])
    return every[torch.randperm(len(every), generator=seeded(7))]


@pytest.mark.parametrize(
    ("share", "counts", "expected"),
    [
        (0.2, (5, 10, 12), (1, 2, 2)),
        (0.2, (2, 3, 20), (0, 1, 4)),
        (0.99, (1, 2, 10), (0, 1, 9)),
        (0.001, (10, 20), (0, 0)),
    ],
)
def test_a_rounded_share_of_each_class_and_never_all_of_it(
    share: float, counts: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    labels = labels_of(*counts)
    held = HeldBack(labels, share, 10, seeded())
    named = labels[held.rows]
    assert [int((named == 5 * number + 3).sum()) for number in range(len(counts))] == list(expected)
    assert len(held.rows.unique()) == len(held.rows)
    visible = held.labels(1)
    assert torch.equal(visible[visible >= 0].unique(), labels[labels >= 0].unique())


def test_the_generator_draws_them() -> None:
    labels = labels_of(20, 20)
    first, again, other = (HeldBack(labels, 0.3, 10, seeded(seed)).rows for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("epochs", "until"), [(10, 5), (7, 3), (2, 1), (1, 0)])
def test_they_are_hidden_until_half_way_and_then_seen(epochs: int, until: int) -> None:
    labels = labels_of(10, 10)
    given = labels.clone()
    held = HeldBack(labels, 0.3, epochs, seeded())
    assert held.until == until
    for epoch in range(1, epochs + 1):
        seen = held.labels(epoch)
        hidden = (seen != labels).nonzero().flatten()
        assert torch.equal(hidden, held.rows if epoch <= until else held.rows[:0])
        assert bool((seen[hidden] == -1).all())
    assert torch.equal(labels, given)


def test_it_judges_the_rows_it_holds_and_no_others() -> None:
    labels = labels_of(8, 8, unlabelled=4)
    held = HeldBack(labels, 0.5, 10, seeded())
    rows = torch.randperm(len(labels), generator=seeded(3))
    right = torch.arange(len(held.rows)) < 5  # of the 8 held-back labels the first 5 are named rightly, the rest not
    columns = (labels == 8).long()
    columns[held.rows] = torch.where(right, columns[held.rows], 1 - columns[held.rows])
    confidence = torch.zeros(len(labels), dtype=torch.float64)
    confidence[held.rows[:4]] = 0.95
    confidence[(labels < 0).nonzero().flatten()[:1]] = 0.95
    shares = torch.nn.functional.one_hot(columns, 2).double() * 0.8 + 0.1
    report = held.judge(Posteriors(torch.tensor([3, 8]), shares[rows], confidence[rows]), rows)
    assert report["accuracy"] == 5 / 8
    assert report["judged"] == 8
    assert report["sentence"].startswith("5 of 8 held-out labels were predicted correctly")
    at_nine_tenths = next(level for level in report["levels"] if level["level"] == 0.9)
    assert (at_nine_tenths["judged"], at_nine_tenths["right"]) == (4, 4)
    assert at_nine_tenths["coverage"] == pytest.approx(5 / 12)  # of 8 held-back and 4 unlabelled examples
    assert json.loads(json.dumps(report)) == report


def test_they_judge_until_the_first_half_is_over(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(run, epochs=5, **CONSENSUS)
    assert trainer.held_back.until == 2
    result = trainer.fit()
    assert [record["epoch"] for record in run.history() if "held_back_accuracy" in record] == [1, 2, 3]
    assert result.trust["epoch"] == 2
    assert result.trust["judged"] == 3
    assert result.trust["accuracy"] == run.history()[3]["held_back_accuracy"]
    assert "of 3 held-out labels" in result.trust["sentence"]


def test_nothing_is_judged_where_nothing_is_held(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    assert make_trainer(run, **(CONSENSUS | {"hold_back": 0.0})).fit().trust is None
    assert not any("held_back_accuracy" in record for record in run.history())


def trained(trainer: Trainer, epochs: int) -> list[Tensor]:
    """Weights after so many epochs."""
    torch.manual_seed(0)
    while trainer.epoch < epochs:
        trainer._train_epoch()
    return [p.detach().clone() for p in (*trainer.encoder.parameters(), *trainer.method.parameters())]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_what_they_are_changes_nothing_before_they_are_seen(make_trainer) -> None:
    plain, other = (make_trainer(epochs=4, epochs_per_partition=1, **CONSENSUS) for _ in range(2))
    rows = other.held_back.rows
    assert len(rows) == 3
    other.data.labels[rows] = other.data.labels[rows].roll(1)
    assert bool((other.data.labels[rows] != plain.data.labels[rows]).all())
    assert equal(trained(plain, 2), trained(other, 2))
    assert not equal(trained(plain, 4), trained(other, 4))
    assert plain.trust["judged"] == other.trust["judged"] == 3


def test_the_other_labels_do_matter_meanwhile(make_trainer) -> None:
    plain, other = (make_trainer(epochs=4, epochs_per_partition=1, **CONSENSUS) for _ in range(2))
    shown = next(row for row in range(12) if row not in other.held_back.rows.tolist())
    other.data.labels[shown] = (other.data.labels[shown] + 1) % 3
    assert not equal(trained(plain, 2), trained(other, 2))


def test_a_method_that_names_nothing_cannot_hold_back(make_trainer) -> None:
    with pytest.raises(InputError, match=r"method 'affinity-triplets' gives none\. Leave hold_back at 0\."):
        make_trainer(hold_back=0.2)


def test_one_label_of_each_class_holds_none_back(make_trainer) -> None:
    trainer = make_trainer(**CONSENSUS)
    labels = torch.full((90,), -1)
    labels[:3] = torch.arange(3)
    single = Trainer(trainer.encoder, trainer.method, TrainingData(trainer.data.inputs, labels), trainer.settings)
    assert single.held_back is None
    with pytest.warns(TrainingWarning, match="Pseudo-label accuracy cannot be estimated.* at least 3 labels"):
        assert single.fit().trust is None


def test_suggested_labels_are_never_held_out() -> None:
    labels = labels_of(10, 10, 4)
    suggested = (labels == 8) | (labels < 0) | ((labels == 3) & (torch.arange(len(labels)) % 2 == 0))
    others = ((labels == 3) & ~suggested).sum()
    held = HeldBack(labels, 0.5, 10, seeded(), suggested)
    assert not bool(suggested[held.rows].any())
    assert [int((labels[held.rows] == name).sum()) for name in (3, 8, 13)] == [round(0.5 * int(others)), 0, 2]
    assert held.suggested == int((suggested & (labels >= 0)).sum())
    shares = torch.nn.functional.one_hot((labels == 8).long() + 2 * (labels == 13).long(), 3).double()
    found = Posteriors(torch.tensor([3, 8, 13]), shares, torch.ones(len(labels), dtype=torch.float64))
    report = held.judge(found, torch.arange(len(labels)))
    assert report["suggested"] == held.suggested
    assert f"{held.suggested} suggested labels were not held out" in report["sentence"]
    assert "Too few others remain" in report["sentence"]


def test_suggested_labels_alone_judge_nothing(make_trainer) -> None:
    trainer = make_trainer(**CONSENSUS)
    data = dataclasses.replace(trainer.data, suggested=torch.ones(90, dtype=torch.bool))
    alone = Trainer(trainer.encoder, trainer.method, data, trainer.settings)
    with pytest.warns(TrainingWarning, match="cannot be estimated.* that were not suggested: label some at random"):
        assert alone.fit().trust is None


@pytest.mark.parametrize("changes", [{"selection": "labels"}, {"selection": "last"}])
def test_they_have_no_say_in_which_model_is_kept(make_trainer, changes: dict) -> None:
    plain, other = (make_trainer(epochs=4, epochs_per_partition=1, **CONSENSUS | changes) for _ in range(2))
    rows = other.held_back.rows
    other.data.labels[rows] = other.data.labels[rows].roll(1)
    assert plain._score() == other._score()


def test_too_few_labels_left_to_choose_by_are_refused_beforehand(make_trainer) -> None:
    trainer = make_trainer(**CONSENSUS)
    labels = torch.full((90,), -1)
    labels[:6] = torch.arange(3).repeat(2)
    settings = dataclasses.replace(trainer.settings, hold_back=0.5, selection="labels")
    with pytest.raises(InputError, match="every class has 1"):
        Trainer(trainer.encoder, trainer.method, TrainingData(trainer.data.inputs, labels), settings)


def test_a_run_that_goes_on_holds_the_same_labels_back(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    first = make_trainer(run, **CONSENSUS)
    trust = first.fit().trust
    again = make_trainer(run, **CONSENSUS)
    assert torch.equal(first.held_back.rows, again.held_back.rows)
    assert again.fit().trust == trust
