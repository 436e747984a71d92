import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.data import partitions, split_examples

LABELS = torch.tensor([0] * 20 + [3] * 31 + [-1] * 5)


@draws(100)
@given(
    counts=st.lists(st.integers(8, 40), min_size=2, max_size=5),
    unknown=st.integers(1, 9),
    per_class=st.integers(1, 4),
    share=st.floats(0, 0.5),
    seed=st.integers(0, 2**31),
)
def test_three_sets_are_disjoint_and_cover_everything(
    counts: list[int], unknown: int, per_class: int, share: float, seed: int
) -> None:
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)] + [torch.full((unknown,), -1)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    split = split_examples(labels, per_class, share, seed)
    together = torch.cat([split.labelled, split.unlabelled, split.validation])
    assert together.sort().values.tolist() == list(range(len(labels)))
    assert labels[split.labelled].bincount().tolist() == [per_class] * len(counts)
    withheld = labels[split.validation]
    assert [int((withheld == k).sum()) for k in range(len(counts))] == [round(share * n) for n in counts]
    assert int((labels[split.unlabelled] == -1).sum()) == unknown
    for part in (split.labelled, split.unlabelled, split.validation):
        assert part.dtype == torch.int64
        assert part.tolist() == sorted(part.tolist())


def test_split_depends_on_the_seed_alone() -> None:
    first = split_examples(LABELS, 3, 0.1, seed=1)
    torch.manual_seed(99)
    assert torch.equal(first.labelled, split_examples(LABELS, 3, 0.1, seed=1).labelled)
    assert not torch.equal(first.labelled, split_examples(LABELS, 3, 0.1, seed=2).labelled)


def test_more_labels_keep_the_earlier_ones() -> None:
    few, many = (set(split_examples(LABELS, n, 0.1, seed=1).labelled.tolist()) for n in (2, 9))
    assert few < many


@pytest.mark.parametrize(
    ("labels", "per_class", "share", "message"),
    [
        (LABELS, 19, 0.1, "Class 0 has too few examples, 20: 19 labelled and 2 withheld"),
        (LABELS, -1, 0.1, "labels_per_class must be at least 0, but is -1"),
        (LABELS, 1, 1.0, "validation_share .* is 1.0"),
        (LABELS, 1, -0.1, "validation_share .* is -0.1"),
        (LABELS, 1, float("nan"), "validation_share .* is nan"),
        (torch.tensor([2, 2, 2, -1]), 1, 0.0, "at least two classes .* hold 1"),
        (torch.tensor([-1, -1]), 1, 0.0, "at least two classes .* hold 0"),
        (torch.tensor([0, 0, 1, 1]), 2, 0.0, "No unlabelled examples are left"),
        (torch.tensor([0.0, 1.0]), 1, 0.0, "must be integers"),
    ],
)
def test_bad_splits_are_refused(labels: torch.Tensor, per_class: int, share: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split_examples(labels, per_class, share, seed=0)


@draws(100)
@given(count=st.integers(1, 200), size=st.integers(1, 250), seed=st.integers(0, 2**31))
def test_partitions_are_one_pass_in_near_equal_pieces(count: int, size: int, seed: int) -> None:
    unlabelled = torch.arange(count) * 3
    pieces = partitions(unlabelled, size, torch.Generator().manual_seed(seed))
    lengths = [len(piece) for piece in pieces]
    assert len(pieces) == -(-count // size)
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1
    assert torch.cat(pieces).sort().values.tolist() == unlabelled.tolist()


def test_partitions_follow_the_generator() -> None:
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.cat(partitions(torch.arange(50), 20, generator)) for _ in range(2))
    again = torch.cat(partitions(torch.arange(50), 20, torch.Generator().manual_seed(3)))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_partitions_of_nothing_and_of_no_size() -> None:
    generator = torch.Generator()
    assert partitions(torch.arange(0), 5, generator) == []
    with pytest.raises(InputError, match="size must be at least 1, but is 0"):
        partitions(torch.arange(3), 0, generator)


def test_no_labels_at_all_leave_everything_unlabelled() -> None:
    split = split_examples(LABELS, 0, 0.0, 0)
    assert len(split.labelled) == 0
    assert torch.equal(split.unlabelled, torch.arange(len(LABELS)))


@given(classes=st.integers(4, 12), share=st.floats(0.01, 0.5), seed=st.integers(0, 2**31))
def test_withheld_classes_are_nowhere_else(classes: int, share: float, seed: int) -> None:
    labels = torch.arange(classes).repeat(6)
    split = split_examples(labels, 2, share, seed, withheld="classes")
    together = torch.cat([split.labelled, split.unlabelled, split.validation])
    assert together.sort().values.tolist() == list(range(len(labels)))
    new = set(labels[split.validation].tolist())
    assert len(new) == max(2, round(share * classes))
    assert len(split.validation) == 6 * len(new)
    assert not new & set(labels[torch.cat([split.labelled, split.unlabelled])].tolist())
    assert len(split.labelled) == 2 * (classes - len(new))


def test_withheld_classes_leave_enough_to_train_on() -> None:
    labels = torch.arange(3).repeat(6)
    with pytest.raises(InputError, match=r"withholds 2 of 3 classes, and training needs at least 2.*withhold examples"):
        split_examples(labels, 2, 0.2, 0, withheld="classes")
    assert len(split_examples(labels, 2, 0.0, 0, withheld="classes").validation) == 0
    with pytest.raises(InputError, match="withheld must be one of examples, classes, got 'rows'"):
        split_examples(labels, 2, 0.2, 0, withheld="rows")
