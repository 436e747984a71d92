"""Ctrl-C and SIGTERM are one sentence at any moment; one process at a time writes to a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.command import semimetric
from sklearn.datasets import load_wine

from semimetric.core.errors import RunError
from semimetric.core.locks import NAME, locked

MOMENTS = [(signal.SIGINT, 0.05), (signal.SIGTERM, 0.5), (signal.SIGINT, 3.0)]


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features, classes = load_wine(return_X_y=True)
    path = tmp_path_factory.mktemp("wine") / "wine.npz"
    np.savez(path, X=features[::3], y=np.where(np.arange(60) % 3 == 0, classes[::3], -1))
    return path


def begun(*arguments: object) -> subprocess.Popen[str]:
    """A command that has begun to handle signals."""
    code = (
        "import signal, sys\nfrom semimetric.cli import entry\nlisten = signal.signal\n"
        "def told(*how):\n    listen(*how)\n    if how == (signal.SIGTERM, entry._interrupt): print('.', flush=True)\n"
        "signal.signal = told\nsys.argv[0] = 'semimetric'\nentry.main()"
    )
    words = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == ".\n"
    return process


@pytest.mark.parametrize(("number", "moment"), MOMENTS)
def test_an_interruption_is_one_sentence(tmp_path: Path, wine: Path, number: signal.Signals, moment: float) -> None:
    process = begun("fit", wine, "--epochs", 4000, "--threads", 1, "-o", tmp_path / "run")
    time.sleep(moment)
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    said = [line for line in err.splitlines() if not line.startswith(("warning: ", "note: "))]
    assert len(said) == 1, err
    assert said[0].startswith("interrupted"), err
    assert not list(tmp_path.rglob(NAME))


INTERRUPTED_IN_A_LOCK = """
import os, signal, sys, time
from pathlib import Path
from semimetric.cli import entry, main
from semimetric.core import locks

def disturbed(call):
    def called(*words):
        found = call(*words)
        os.kill(os.getpid(), signal.SIGTERM)  # the worst moment: what was made has no name yet
        time.sleep(0.05)
        return found
    return called

def run():
    {patch}
    lock = locks.Lock(Path({folder!r}))
    lock.acquire()
    {more}
    time.sleep(10)

main.main = run
entry.main()
"""


@pytest.mark.parametrize(
    ("patch", "more"),
    [
        ("locks.try_lock = disturbed(locks.try_lock)", "pass"),
        ("pass", "os.kill(os.getpid(), signal.SIGTERM)"),
        ("os.close = disturbed(os.close)", "lock.release()"),
    ],
    ids=["while it is taken", "while nobody would give it back", "while it is given back"],
)
def test_no_lock_stays_after_an_interruption(tmp_path: Path, patch: str, more: str) -> None:
    code = INTERRUPTED_IN_A_LOCK.format(patch=patch, more=more, folder=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert not (tmp_path / "run").exists()


def test_a_library_that_swallows_everything_while_it_is_imported_loses_no_interruption(tmp_path: Path) -> None:
    swallows = "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(0.3)\nexcept BaseException:\n    pass\n"
    (tmp_path / "swallows.py").write_text("import os, signal, time\n" + swallows)
    code = (
        "import signal, time\nfrom semimetric.cli import entry\nsignal.signal(signal.SIGINT, entry._interrupt)\n"
        "try:\n    import swallows\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (said.stdout, said.stderr) == ("interrupted\n", "")


def test_a_lock_names_its_holder_and_a_dead_one_is_taken_over(tmp_path: Path, wine: Path) -> None:
    out = tmp_path / "run"
    fit = ("fit", wine, "--method", "lrml", "-o", out)
    with locked(out):
        said = semimetric(*fit).sentence()
        assert f"is in use by process {os.getpid()} on " in said
        assert " since 20" in said
        assert [path.name for path in out.iterdir()] == [NAME]
    out.mkdir(exist_ok=True)
    (out / NAME).write_text('{"pid": 1, "host": "x", "since": "then"}')
    assert semimetric(*fit).code == 0
    assert not (out / NAME).exists()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        f"import pathlib, time\nfrom semimetric.core.locks import Lock\nlock = Lock(pathlib.Path({str(tmp_path)!r}))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code + "lock.acquire(); print('.', flush=True); time.sleep(100)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == ".\n"
    with pytest.raises(RunError, match=f"process {process.pid} on"), locked(tmp_path):
        pass
    process.kill()
    process.communicate()
    with locked(tmp_path):
        assert (tmp_path / NAME).exists()
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("command", ["embed", "tune"])
def test_other_folders_are_locked_too(tmp_path: Path, wine: Path, command: str) -> None:
    if command == "tune":
        pytest.importorskip("optuna", reason="the extra tune is not installed")
        with locked(tmp_path / "study"):
            words = ("tune", wine, "--method", "lrml", "--trials", 1, "-o", tmp_path / "study")
            assert "is in use by process" in semimetric(*words).sentence()
        return
    assert semimetric("fit", wine, "--method", "lrml", "-o", tmp_path / "run").code == 0
    with locked(tmp_path / ".e.npy.semimetric-parts"):
        said = semimetric("embed", tmp_path / "run", wine, "-o", tmp_path / "e.npy").sentence()
    assert "is in use by process" in said
