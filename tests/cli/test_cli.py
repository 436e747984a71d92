from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from helpers import command

from semimetric.core.errors import InputError

QUICK = ["--method", "affinity-triplets", "--epochs", "1", "--k", "6", "--batch-size", "300"]


def installed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    words = [sys.executable, "-m", "semimetric", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=200)


def semimetric(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in this process, which has all imports behind it."""
    with patch.dict(os.environ, environment):
        done = command.semimetric(*arguments)
    return subprocess.CompletedProcess(arguments, done.code, done.out, done.err)


def test_fit_prints_json_last_and_evaluate_agrees(tmp_path: Path) -> None:
    done = semimetric(
        "fit", "--dataset", "digits", "--labels-per-class", 5, "--out", tmp_path / "run", "--json", *QUICK
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["method"] == "affinity-triplets"
    assert outcome["trust"] is None
    assert outcome["run"] == str(tmp_path / "run")
    assert 0.0 < outcome["final"]["nmi"] <= 1.0
    again = semimetric("evaluate", tmp_path / "run", "--json")
    assert json.loads(again.stdout)["scores"] == outcome["final"]
    table = semimetric("evaluate", tmp_path / "run")
    assert f"{100 * outcome['final']['recall@1']:.1f}" in table.stdout


def test_piped_output_is_quiet_and_a_table(tmp_path: Path) -> None:
    done = installed("fit", "--out", tmp_path / "run", "--quiet", *QUICK)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "Initial" in done.stdout
    assert "Final" in done.stdout
    assert "Pseudo-labels" not in done.stdout
    assert "\x1b" not in done.stdout


def test_unless_told_otherwise_it_says_how_far_to_trust_its_pseudo_labels(tmp_path: Path) -> None:
    quick = ["--out", tmp_path / "run", "--epochs", 2, "--passes", 1, "--labels-per-class", 10]
    done = semimetric("fit", "--quiet", *quick)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "consensus on digits" in done.stdout
    outcome = json.loads(semimetric("fit", *quick, "--resume", "--json").stdout.splitlines()[-1])
    trust = outcome["trust"]
    assert (trust["epoch"], trust["judged"]) == (1, 20)
    assert trust["low"] <= trust["accuracy"] <= trust["high"]
    assert "of 20 held-out labels" in trust["sentence"]
    assert f"Pseudo-labels after epoch 1: {trust['sentence']}" in done.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr", "inf"], "lr must be a finite number of at least 0"),
        (["--gamma", "1.5"], "gamma must lie strictly between 0 and 1, got 1.5"),
        (["--k", "5000"], "k must be below the number of examples in the graph"),
        (["--dataset", "mnits"], "mnist"),
        (["--method", "magic"], "method must be one of"),
        (["--labels-per-class", "0"], "needs labels and there is none"),
        (["--labels-per-class", "-1"], "labels_per_class"),
        (["--labels-per-class", "1000"], "1000"),
        (["--encoder", "resnet"], "encoder must be one of"),
        (["--device", "tpu"], "device must be one of auto, cpu, cuda"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = semimetric("fit", "--out", tmp_path / "run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_fit_says_on_what_it_trains_and_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    done = semimetric("fit", "--out", tmp_path / "run", *QUICK)
    assert done.returncode == 0
    told = done.stderr.splitlines()
    assert told[0] == "neither DATA nor --dataset is given, so the data are the benchmark digits"
    assert told[1].startswith("affinity-triplets on digits: ")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    again = semimetric("fit", "--out", tmp_path / "run", "--seed", 1, *QUICK)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    other = semimetric("fit", "--out", tmp_path / "run", "--seed", 1, "--resume", *QUICK)
    assert other.returncode == 2
    assert "seed was 0 and is now 1" in other.stderr
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize(
    ("begun", "advice"), [(True, "continue with the same command and --resume"), (False, "no run is written yet")]
)
def test_an_interrupt_outside_of_training_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, advice: str
) -> None:
    def interrupted(experiment: object, out: Path, *_: object) -> None:
        if begun:
            out.mkdir()
            (out / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("semimetric.pipeline.benchmark.fit_benchmark", interrupted)
    done = command.semimetric("fit", "--dataset", "digits", "--out", tmp_path / "run")
    assert done.code == 130
    assert f"interrupted; {advice}" in done.err


INTERRUPTED = """
import os, signal
from semimetric.cli.main import main
from semimetric.training import Trainer

def interrupted(trainer, train=Trainer._train_epoch):
    if trainer.epoch == 1:
        os.kill(os.getpid(), signal.SIGINT)
    train(trainer)

Trainer._train_epoch = interrupted
main()
"""


def test_interrupt_leaves_a_usable_run_that_resumes(tmp_path: Path) -> None:
    fit = ["fit", "--out", str(tmp_path / "run"), "--json", *QUICK, "--epochs", "3"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *fit],
        capture_output=True,
        text=True,
        timeout=200,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell leaves it ignored
    )
    assert done.returncode == 130, done.stderr
    assert "--resume" in done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["interrupted"]
    assert outcome["epochs"] == 1
    assert command.semimetric("evaluate", tmp_path / "run").code == 0
    assert command.semimetric(*fit, "--resume").json()["epochs"] == 3


def test_methods_and_datasets_are_listed(tmp_path: Path) -> None:
    methods = json.loads(semimetric("methods", "--json").stdout)
    needs = {method["name"]: method["needs"] for method in methods}
    assert methods[0]["name"] == "consensus"
    assert "views" in needs["consensus"]
    assert "labels" in needs["affinity-triplets"]
    assert "views" not in needs["affinity-triplets"]
    listed = semimetric("datasets", "--json", "--data-dir", tmp_path, XDG_CACHE_HOME=str(tmp_path), SEMIMETRIC_DATA="")
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert set(rows) >= {"digits", "mnist", "fashion-mnist", "cifar10", "cub200", "cars196"}
    assert rows["digits"]["found"] == "inside scikit-learn"
    assert rows["mnist"]["found"] is None
    table = semimetric("datasets", "--data-dir", tmp_path, XDG_CACHE_HOME=str(tmp_path), SEMIMETRIC_DATA="").stdout
    assert "not found" in table
    assert re.search(r"missing one \(mnist, (fashion-mnist, )?cifar10\) with: semimetric datasets fetch NAME", table)
    assert "Get cub200 yourself from https://data.caltech.edu/records/65de6-vp158\n" in table
    assert "Get cars196 yourself from https://ai.stanford.edu/" in table
    assert "yourself" not in listed.stdout


def test_a_missing_dataset_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    done = semimetric(
        "fit",
        "--dataset",
        "mnist",
        "--data-dir",
        tmp_path,
        "--out",
        tmp_path / "run",
        XDG_CACHE_HOME=str(tmp_path),
        SEMIMETRIC_DATA="",
    )
    assert done.returncode == 2
    assert "semimetric datasets fetch mnist" in done.stderr
    assert str(tmp_path) in done.stderr


def test_every_hyper_parameter_is_a_flag() -> None:
    shown = semimetric("fit", "--help-all", COLUMNS="200", TERM="dumb").stdout
    for flag in (
        "--k",
        "--gamma",
        "--alpha",
        "--components",
        "--no-orthogonal",
        "--anchors",
        "--reduction",
        "--lr",
        "--metric-every",
        "--selection",
        "--partition-size",
        "--pretrain-epochs",
        "--preset",
        "--resume",
        "--head-share",
        "--augmentation",
        "--average",
        "--lr-schedule",
        "--warmup",
        "--no-nesterov",
        "--decay",
        "--hold-back",
        "--passes",
        "--precision",
    ):
        assert flag in shown, flag


def test_help_shows_everyday_options_and_those_of_a_method_on_request() -> None:
    everyday = semimetric("fit", "--help", COLUMNS="200", TERM="dumb").stdout
    assert all(flag in everyday for flag in ("--epochs", "--encoder", "--weights", "--components", "--help-all"))
    assert not any(flag in everyday for flag in ("--gamma", "--partition-size", "--pretrain-lr", "--head-share"))
    assert len(everyday.splitlines()) < 60
    own = semimetric("fit", "--method", "consensus", "--help", COLUMNS="200", TERM="dumb").stdout
    assert all(
        flag in own
        for flag in ("--head-share", "--partition-size", "Temperature of that contrastive loss. (Default 0.1.)")
    )
    assert "--orthogonal" not in own
    assert "Default adamw." not in own  # another one with a residual encoder
    assert "Default adamw." in semimetric("fit", "--method", "stml", "--help", COLUMNS="200", TERM="dumb").stdout


def test_help_does_not_stumble_over_other_flags() -> None:
    for words in (["--lr", "0.1"], ["--method", "lrml", "--k", "3"], ["--method", "lrml", "--margin", "3"]):
        done = command.semimetric("fit", *words, "--help")
        assert done.code == 0, done.err
        assert "Usage" in done.out


def test_a_registered_command_is_listed_and_runs() -> None:
    from semimetric.cli.console import say
    from semimetric.cli.main import COMMANDS, register_command

    register_command("greet", lambda: say("hello"))
    try:
        assert command.semimetric("greet").out == "hello\n"
        with pytest.raises(InputError, match="there is a command 'greet' already"):
            register_command("greet", print)
    finally:
        del COMMANDS._loaded["greet"]


def test_brackets_in_a_message_are_only_text(tmp_path: Path) -> None:
    folder = tmp_path / "x[" / "y]"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("x")
    done = semimetric("fit", "--out", folder, *QUICK)
    assert done.returncode == 2
    assert "is not an empty folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_misspelt_command_is_answered_with_the_nearest_one() -> None:
    done = semimetric("serch", "run")
    assert done.returncode == 2
    assert "No such command 'serch'. Did you mean 'search'?" in done.stderr


def test_version() -> None:
    import semimetric as package

    assert installed("--version").stdout.strip() == package.__version__


@pytest.mark.parametrize(
    ("given", "used"), [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_idle_threads_sleep_soon_unless_the_environment_says_otherwise(given: dict[str, str], used: str) -> None:
    """What OpenMP is told before torch is loaded; threads that spin make a busy machine several times slower."""
    told = "import os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    replaced = f"import semimetric.cli.main as cli; cli.main = lambda: exec({told!r})"
    others = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    script = f"{replaced}; from semimetric.cli.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=others | given, check=True
    )
    assert done.stdout.split() == [used, "False"]
