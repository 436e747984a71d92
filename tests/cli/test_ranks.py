"""``fit`` by several processes, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command import installed, semimetric

FIT = "semimetric fit --dataset digits --labels-per-class 3 --epochs 2 --hold-back 0 --lr 1e-5 --json --out"


def test_machines_without_a_place_to_meet_are_refused(tmp_path: Path) -> None:
    done = semimetric("fit", "--nodes", 2, "--out", tmp_path / "run")
    assert "--nodes 2 needs --rendezvous HOST:PORT" in done.sentence()
    assert not (tmp_path / "run").exists()


def test_other_numbers_than_those_of_torchrun_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    done = semimetric("fit", "--devices", 3, "--out", tmp_path / "run")
    assert "are 3 processes, and 4 were started" in done.sentence()


def test_processes_that_do_not_know_where_to_meet_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    done = semimetric("fit", "--out", tmp_path / "run")
    assert "MASTER_ADDR and MASTER_PORT do not say where they meet" in done.sentence()


@pytest.mark.slow
def test_two_devices_equal_one(tmp_path: Path) -> None:
    one = installed(f"{FIT} one", tmp_path).json()
    two = installed(f"{FIT} two --devices 2", tmp_path).json()
    assert two["final"] == pytest.approx(one["final"], abs=0.005)
    assert two["initial"] == one["initial"]
    again = installed(f"{FIT} two --resume", tmp_path).json()
    assert again["final"] == two["final"]


@pytest.mark.slow
def test_torchrun_starts_it_too_and_a_folder_in_use_is_one_sentence(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [*torchrun, *FIT.split(), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["epochs"] == 2
    refused = installed(f"{FIT} run --devices 2", tmp_path)
    assert "already holds a run" in refused.sentence()
