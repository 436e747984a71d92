from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.sealed import reseal

from semimetric.core.errors import RunError
from semimetric.core.files import read_tensors, write_atomically, write_json, write_tensors
from semimetric.training import Run


def test_a_folder_that_holds_anything_is_left_alone(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"a": 1})
    with pytest.raises(RunError, match="already holds a run"):
        Run.create(tmp_path / "run", {"a": 2})
    assert Run.open(tmp_path / "run").config() == {"a": 1}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(RunError, match="is not an empty folder"):
        Run.create(tmp_path / "mine", {})
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is not an empty folder"):
        Run.create(tmp_path / "file", {})


def test_resume_refuses_other_settings_by_name(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"seed": 1, "training": {"lr": 0.1, "epochs": 3}})
    same = Run.resume(tmp_path / "run", {"seed": 1, "training": {"lr": 0.1, "epochs": 3}})
    assert same.path == tmp_path / "run"
    with pytest.raises(RunError, match=r"training\.lr was 0\.1 and is now 0\.2"):
        Run.resume(tmp_path / "run", {"seed": 1, "training": {"lr": 0.2, "epochs": 3}})


def test_a_setting_that_the_run_does_not_have_is_another_setting(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"plan": {"training": {"lr": 0.1}, "split": None}})
    with pytest.raises(RunError, match=r"plan\.training\.slow was None and is now True"):
        Run.resume(tmp_path / "run", {"plan": {"training": {"lr": 0.1, "slow": True}, "split": None}})


def test_resume_of_nothing_starts_a_run(tmp_path: Path) -> None:
    assert Run.resume(tmp_path / "new", {"a": 1}).config() == {"a": 1}


@pytest.mark.parametrize("lost", ["checkpoint.safetensors", "model.safetensors", "initial.json", "model.json"])
def test_a_run_that_lost_a_file_is_not_continued(tmp_path: Path, lost: str) -> None:
    run = Run.create(tmp_path / "run", {"kind": "benchmark", "dataset": "digits"})
    for name in {"checkpoint.safetensors", "model.safetensors", "preprocess.safetensors"} - {lost}:
        run.write_tensors(name, {"a": torch.zeros(1)})
    for name in {"initial.json", "metrics.jsonl", "model.json"} - {lost}:
        run.write(name, {})
    with pytest.raises(RunError, match=f"is damaged: {lost} is missing"):
        Run.resume(tmp_path / "run", {"kind": "benchmark", "dataset": "digits"})


def test_a_run_that_was_killed_before_its_first_checkpoint_has_lost_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.abcdefgh.semimetric-tmp").write_text("{")
    run = Run.resume(tmp_path / "run", {"a": 1})
    run.log({"epoch": 0})
    (run.path / ".checkpoint.safetensors.12345678.semimetric-tmp").write_bytes(b"half")
    Run.resume(run.path, {"a": 1})
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "manifest.json", "metrics.jsonl"]
    run.log({"epoch": 1})
    with pytest.raises(RunError, match=r"checkpoint\.safetensors, .* is missing"):
        Run.resume(run.path, {"a": 1})


def test_a_damaged_log_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    run.log({"epoch": 0})
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(bytes(range(128, 255)))
    assert run.history() == [{"epoch": 0}]


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no config\.json"):
        Run.open(tmp_path)
    with pytest.raises(RunError, match=r"holds no model\.safetensors"):
        Run.create(tmp_path / "run", {}).read_tensors("model.safetensors")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    (run.path / "config.json").write_text("{")
    reseal(run.path)
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        run.config()
    (run.path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0notjson!")
    reseal(run.path)
    with pytest.raises(RunError, match=r"model\.safetensors cannot be read"):
        run.read_tensors("model.safetensors")


def test_tensors_and_state_come_back(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6).reshape(2, 3).T, "b": torch.ones((), dtype=torch.float64)}
    write_tensors(tmp_path / "t", tensors, {"epoch": 3, "score": [0.5]})
    loaded, state = read_tensors(tmp_path / "t")
    assert state == {"epoch": 3, "score": [0.5]}
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"old": True})

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(tmp_path / "a.json", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert "old" in (tmp_path / "a.json").read_text()
