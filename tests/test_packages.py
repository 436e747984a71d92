"""The lock file with hashes and the bill of materials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "packages.py"


def made(what: str, given: str = "") -> str:
    return subprocess.run(
        [sys.executable, str(TOOL), what], input=given, capture_output=True, text=True, check=True
    ).stdout


def test_the_lock_has_a_hash_for_every_package_but_the_project() -> None:
    whole = {"archive_info": {"hashes": {"sha256": "ab" * 32}}}
    report = {
        "install": [
            {"metadata": {"name": "torch", "version": "2.6"}, "download_info": whole},
            {"metadata": {"name": "semimetric", "version": "0"}, "download_info": {"dir_info": {}}},
        ]
    }
    first, *lines = made("lock", json.dumps(report)).splitlines()
    assert first.startswith("#")
    assert lines == [f"torch==2.6 --hash=sha256:{'ab' * 32}"]


def test_the_bill_lists_what_is_installed() -> None:
    listed = json.loads(made("sbom"))
    assert listed["bomFormat"] == "CycloneDX"
    names = [part["name"].lower() for part in listed["components"]]
    assert {"torch", "numpy", "safetensors"} <= {*names}
    assert names == sorted(names)
