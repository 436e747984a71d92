"""What is installed, for those who must know it: a lock file with hashes, and a software bill of materials.

pip install --dry-run --ignore-installed --quiet --report - -c constraints.txt . | python tools/packages.py lock
python tools/packages.py sbom
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distributions
from typing import Any


def lock(report: dict[str, Any]) -> str:
    """A requirements file with hashes, of a report of pip on what it would install.

    Files that do not come from an index, such as a wheel of torch for one device, have a line without a hash.
    """
    about = report.get("environment", {})
    where = " ".join(about.get(name, "") for name in ("implementation_name", "python_version", "sys_platform"))
    lines = [f"# The tested versions, with the SHA-256 of the files for {where} {about.get('platform_machine', '')}."]
    lines.append("# Made by: make lock. Install with: pip install --no-deps --require-hashes -r requirements.lock")
    for one in sorted(report["install"], key=lambda one: one["metadata"]["name"].lower()):
        found, name = one["download_info"], f"{one['metadata']['name']}=={one['metadata']['version']}"
        digest = found.get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest and found["url"].startswith("https://"):
            lines.append(f"{name} --hash=sha256:{digest}")
        elif digest:  # not the project itself
            lines.append(
                f"# {name}: install it first; the tested file is not from a public index, so it has no hash here"
            )
    return "\n".join(lines) + "\n"


def sbom(installed: list[Distribution]) -> str:
    """The installed packages in the CycloneDX format, version 1.5."""
    return json.dumps(
        {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": _components(installed)}
    )


def _components(installed: list[Distribution]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in installed:
        name, licence = one.metadata["Name"], one.metadata.get("License-Expression") or one.metadata.get("License")
        part: dict[str, Any] = {"type": "library", "name": name, "version": one.version}
        part["purl"] = f"pkg:pypi/{name.lower().replace('_', '-')}@{one.version}"
        if licence:
            part["licenses"] = [{"license": {"name": licence.splitlines()[0][:100]}}]
        found[name.lower()] = part
    return [found[name] for name in sorted(found)]


if __name__ == "__main__":
    made = {"lock": lambda: lock(json.load(sys.stdin)), "sbom": lambda: sbom(list(distributions()))}
    sys.stdout.write(made[sys.argv[1]]())
