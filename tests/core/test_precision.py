"""Products in full float32: for as long as anyone needs them, and with what the process had chosen afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from semimetric.core.precision import full_float32, is_lowered_on_gpu

CHOICES = [
    "pass",
    "torch.set_float32_matmul_precision('high')",
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.fp32_precision = 'tf32'",
]

USED = """
import torch
from semimetric.core.precision import full_float32, is_lowered_on_gpu
from semimetric.graph import edge_walk

def told():
    found = [is_lowered_on_gpu()]
    for read in (torch.get_float32_matmul_precision, lambda: torch.backends.cuda.matmul.allow_tf32):
        try:
            found.append(read())
        except RuntimeError:
            found.append("mixed")
    return found

for choice in {choices!r}:
    exec(choice)
    before = told()
    edge_walk.EdgeWalk(torch.tensor([[1], [2], [0], [0]]), 0.9).columns(0, 2)
    with full_float32():
        assert not is_lowered_on_gpu()
    assert told() == before, (choice, before, told())
"""


def test_the_choice_of_the_process_is_kept() -> None:
    """In a process of its own, as no choice can be undone altogether."""
    done = subprocess.run([sys.executable, "-c", USED.format(choices=CHOICES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_it_lasts_until_the_last_thread_has_left() -> None:
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has one precision for all backends")
    backend = torch.backends.cuda.matmul
    before, backend.fp32_precision = backend.fp32_precision, "tf32"
    first, second = full_float32(), full_float32()
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not is_lowered_on_gpu()
        second.__exit__(None, None, None)
        assert is_lowered_on_gpu()
    finally:
        backend.fp32_precision = before
