"""The allocator: an array that is made again and again costs the kernel its pages once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import resource
import numpy as np
from semimetric.core.allocator import keep_freed_memory
print(keep_freed_memory())
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    np.ones(2_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> tuple[str, int]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=plain | environment)
    told, count = done.stdout.split()
    return told, int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has these settings")
def test_arrays_reuse_freed_memory() -> None:
    told, kept = faults()
    if told == "False":
        pytest.skip("the C library is not glibc")
    told, returned = faults(MALLOC_MMAP_THRESHOLD_="131072")
    assert told == "False"
    assert returned > 4 * kept
