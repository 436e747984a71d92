"""``--threads`` bounds every pool of threads, those of libraries that are loaded later, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import watching
from helpers.command import COMMAND
from safetensors.torch import load_file
from sklearn.datasets import load_wine

TESTS = Path(watching.__file__).parent.parent

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")


def unbounded(**more: str) -> dict[str, str]:
    """The environment of a user who has set no number of threads."""
    kept = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    return kept | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])} | more


def test_a_fit_with_one_thread_has_one_in_every_pool_and_finds_the_same(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="needs semimetric[faiss]")
    package = tmp_path / "installed" / "watching-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: watching\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[semimetric.methods]\nwatching = helpers.watching:Watching\n")
    features, classes = load_wine(return_X_y=True)
    np.savez(tmp_path / "wine.npz", X=features, y=np.where(np.arange(178) % 6 == 0, classes, -1))
    seen, embeddings = {}, {}
    for name, option in {"bound": ["--threads", "1"], "free": []}.items():
        env = unbounded(WATCHED=str(tmp_path / f"{name}.jsonl"))
        env["PYTHONPATH"] = f"{package.parent}{os.pathsep}{env['PYTHONPATH']}"
        words = ["fit", "wine.npz", "--method", "watching", "--epochs", "2", "-o", name, *option]
        subprocess.run([*COMMAND, *words], env=env, cwd=tmp_path, check=True, capture_output=True, text=True)
        seen[name] = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        embeddings[name] = load_file(tmp_path / name / "examples.safetensors")["embeddings"]
    assert set(seen["bound"][0]) == set(seen["free"][0])
    assert len(seen["bound"][0]) >= 5  # torch, its OpenMP, FAISS, and the OpenBLAS of NumPy and of SciPy
    assert {threads for pools in seen["bound"] for threads in pools.values()} == {1}
    assert max(seen["free"][0].values()) > 1
    np.testing.assert_allclose(embeddings["bound"], embeddings["free"], atol=1e-4)


PROGRAM = """
import sys
{first}
from helpers.command import semimetric
assert semimetric({command!r}, *sys.argv[1:]).code == 2
import faiss, numpy, scipy.linalg, torch
from threadpoolctl import threadpool_info
print(torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info()))
"""


@pytest.mark.parametrize("first", ["", "import faiss, numpy, scipy.linalg, torch"], ids=["later", "before"])
@pytest.mark.parametrize("command", ["fit", "tune", "reproduce"])
def test_every_command_with_threads_bounds_all_pools(tmp_path: Path, command: str, first: str) -> None:
    """Whether libraries are loaded before or after; the command itself ends at once, because it lacks something."""
    pytest.importorskip("faiss", reason="needs semimetric[faiss]")
    (tmp_path / "given.toml").write_text("threads = 1\n")
    threads = ["--config", "given.toml"] if command == "tune" else ["--threads", "1"]
    program = PROGRAM.format(command=command, first=first)
    words = ["table1", "--datasets", "none"] if command == "reproduce" else ["none.csv", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words, *threads],
        env=unbounded(),
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    counts = done.stdout.split()
    assert len(counts) >= 5
    assert {*counts} == {"1"}
