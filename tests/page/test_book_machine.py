"""A short run of the state machine of the label book; ``python -m faults --parts labels`` is the long one."""

from __future__ import annotations

import multiprocessing

import pytest

pytest.importorskip("starlette", reason="needs semimetric[page]")
pytest.importorskip("uvicorn", reason="needs semimetric[page]")

from helpers.book_machine import RULES, SERVER, BookMachine, machine_on, play
from helpers.book_model import Paper
from helpers.book_servers import Broken
from helpers.killed import Killer

pytestmark = pytest.mark.filterwarnings("ignore:.*")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> type[BookMachine]:
    killer = Killer(multiprocessing.get_context("forkserver"), *SERVER)
    return machine_on(tmp_path_factory.mktemp("machine"), killer)


def test_the_book_says_what_was_acknowledged(machine: type[BookMachine]) -> None:
    for seed in range(20):  # what a seed draws differs between versions of Hypothesis
        play(machine, examples=2, steps=20, seed=seed)
        done = machine.counts
        steps = sum(done[name] for name in RULES)
        if steps >= 80 and done["answered 200"] >= 20 and done["kill in flight"] >= 2 and done["learned"]:
            return
    pytest.fail(f"it does too little: {machine.counts}")


def test_the_machine_finds_a_label_that_was_lost(machine: type[BookMachine]) -> None:
    class Forgetful(machine):  # type: ignore[misc, valid-type]
        def write(self, server: object, paper: Paper | None) -> None:
            """The model has a label more than the book."""
            super().write(server, paper and paper.labelled({39: "lost"}, "Ada"))

    with pytest.raises(Broken, match="lost"):
        play(Forgetful, examples=3, steps=20, seed=5)
