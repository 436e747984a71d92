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


def test_the_lock_has_a_hash_for_every_package_of_an_index() -> None:
    whole = {"archive_info": {"hashes": {"sha256": "ab" * 32}}}
    report = {
        "install": [
            {"metadata": {"name": "numpy", "version": "2.6"}, "download_info": whole | {"url": "https://x/n.whl"}},
            {"metadata": {"name": "torch", "version": "2.6+cpu"}, "download_info": whole | {"url": "file:///t.whl"}},
            {"metadata": {"name": "semimetric", "version": "0"}, "download_info": {"dir_info": {}, "url": "file:///"}},
        ]
    }
    *about, one, other = made("lock", json.dumps(report)).splitlines()
    assert len(about) == 2
    assert one == f"numpy==2.6 --hash=sha256:{'ab' * 32}"
    assert other.startswith("# torch==2.6+cpu: install it first")


def test_the_committed_lock_has_the_tested_versions() -> None:
    lines = (TOOL.parents[1] / "requirements.lock").read_text().splitlines()
    locked = [line.removeprefix("# ").split(" ")[0].rstrip(":") for line in lines[2:]]
    tested = [line for line in (TOOL.parents[1] / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
    pinned = dict(line.lower().replace("_", "-").split("==") for line in tested)
    for name, version in (line.lower().replace("_", "-").split("==") for line in locked):
        assert pinned.get(name, version) == version
    assert {"numpy", "scipy", "scikit-learn", "safetensors", "typer"} <= {line.split("==")[0] for line in locked}
    assert all(" --hash=sha256:" in line or line.startswith("#") for line in lines)


def test_the_bill_lists_what_is_installed() -> None:
    listed = json.loads(made("sbom"))
    assert listed["bomFormat"] == "CycloneDX"
    names = [part["name"].lower() for part in listed["components"]]
    assert {"torch", "numpy", "safetensors"} <= {*names}
    assert names == sorted(names)
