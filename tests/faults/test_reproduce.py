"""``semimetric reproduce`` that is killed or interrupted: no process is left, and the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.command import COMMAND, semimetric

from semimetric.core.files import read_json

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="nothing here lists processes")

FITS = ["reproduce", "table1", "--quick", "--methods", "lrml,consensus", "--device", "cpu", "--workers", "1", "--out"]


def session(leader: int) -> set[int]:
    """The processes of a session that have not ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == leader and state != "Z":
            found.add(int(path.parent.name))
    return found


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def start() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Starts the installed command in a session of its own, and returns when its first fit is at work."""
    processes = []

    def begin(out: Path) -> subprocess.Popen[str]:
        began = time.time()
        command = [*COMMAND, *FITS, str(out)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)

        def at_work() -> bool:
            logs = out.glob("unfinished/*/metrics.jsonl")
            return any(log.stat().st_mtime > began for log in logs) or process.poll() is not None

        assert wait_for(at_work, 120)
        assert process.poll() is None
        assert len(session(process.pid)) >= 2  # the command and its worker
        return process

    yield begin
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_no_process_outlives_the_command_and_the_same_command_goes_on(tmp_path: Path, start) -> None:
    killed = start(tmp_path)
    killed.kill()
    killed.wait()
    assert wait_for(lambda: not session(killed.pid), 10), "workers outlive the command that was killed"

    interrupted = start(tmp_path)
    os.killpg(interrupted.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
    _, told = interrupted.communicate(timeout=100)
    assert interrupted.returncode == 130
    assert f"interrupted; the same command goes on from what is in {tmp_path}" in told
    assert "Traceback" not in told
    assert wait_for(lambda: not session(interrupted.pid), 5), "workers outlive the command that was interrupted"

    (begun,) = (tmp_path / "unfinished").iterdir()
    done = semimetric(*FITS, tmp_path)
    assert done.code == 0, done.err
    assert "2 fits run, 0 results reused." in done.out
    records = read_json(tmp_path / "records" / "digits.json")["records"]
    assert {record["method"] for record in records} == {"lrml", "consensus"}
    assert begun.name in {record["key"] for record in records}
    assert list((tmp_path / "unfinished").iterdir()) == []


@pytest.mark.slow
def test_an_interrupt_of_the_command_alone_ends_its_workers(tmp_path: Path, start) -> None:
    process = start(tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 130
    assert wait_for(lambda: not session(process.pid), 5)
