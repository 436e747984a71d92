"""Things by name, of this package and of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semimetric.core.errors import InputError
from semimetric.core.registry import Registry


def test_names_are_known_before_anything_is_imported() -> None:
    things: Registry[object] = Registry(
        "thing", "semimetric.tests.none", {"alpha": "no.such.module:A", "pi": "math:pi"}
    )
    assert list(things) == ["alpha", "pi"]
    assert len(things) == 2
    assert things["pi"] == pytest.approx(3.14159, abs=1e-4)
    with pytest.raises(InputError, match=r"thing must be one of alpha, pi, got 'alpa'\. Did you mean 'alpha'\?"):
        things.find("alpa")


def test_a_name_is_registered_once() -> None:
    things: Registry[int] = Registry("thing", "semimetric.tests.none", {"pi": "math:pi"})
    assert things.register("two", 2) == 2
    assert dict(things.items())["two"] == 2
    assert things.register("two", 2) == 2  # a notebook cell that is run twice
    with pytest.raises(InputError, match="there is a thing 'pi' already"):
        things.register("pi", 3)


@pytest.mark.parametrize(
    ("group", "words"), [("methods", "fit --method lrml --k 5 --show-settings"), ("commands", "--help")]
)
def test_a_broken_package_of_others_is_named_and_does_no_harm(tmp_path: Path, group: str, words: str) -> None:
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text(f"[semimetric.{group}]\nbad = gone:Bad\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "semimetric", *words.split()],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "'bad' of broken cannot be loaded from gone:Bad (ModuleNotFoundError" in done.stderr
