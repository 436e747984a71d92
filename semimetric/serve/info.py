"""What a run says of itself: data, classes, network, settings, scores, files and versions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from semimetric.model.added import ADDED
from semimetric.model.fields import check_fields, read_fields
from semimetric.model.folder import read_config
from semimetric.model.versions import version_differences
from semimetric.pipeline.plan import Plan
from semimetric.training.run import Run


def describe_run(path: Path) -> dict[str, Any]:
    """Everything about a run, as JSON values; a run whose training has not ended has less of it.

    Returns
    -------
    dict
        ``run``, ``kind``, ``finished``; ``data`` (source, examples, those added later, labelled, unlabelled, classes
        with the number of their labels); ``model`` (what it is built of, and the dimensions of the embedding);
        ``settings`` in force, by group; ``result`` (epochs, scores, trust); ``files`` with their bytes; ``versions``
        that wrote it, and ``differences`` from those here.
    """
    run = Run.open(path)
    config, result = read_config(run), read_fields(run, "result.json")
    plan = Plan.from_dict(config["plan"], config.get("version", "unknown")) if "plan" in config else None
    files = {file.name: file.stat().st_size for file in sorted(path.iterdir()) if file.is_file()}
    return {
        "run": str(path),
        "kind": config.get("kind", "format 1"),
        "finished": run.has("result.json") and not result.get("interrupted", False),
        "data": _data(run, config),
        "model": read_fields(run, "model.json") | {"components": result.get("components")},
        "settings": {} if plan is None else plan.as_options(),
        "result": {name: value for name, value in result.items() if name not in ("found", "run", "skipped_files")},
        "files": files,
        "bytes": sum(files.values()),
        "versions": config.get("versions", {}),
        "differences": version_differences(config.get("versions")),
    }


def _data(run: Run, config: dict[str, Any]) -> dict[str, Any]:
    """Where the examples came from, and how many of each class have a label."""
    listed = read_fields(run, "examples.json")
    source = listed.get("source") or config.get("data", {}).get("source", "")
    if not run.has("examples.safetensors"):
        return {"source": source}
    tensors, _ = run.read_tensors("examples.safetensors", ("labels", "classes"))
    counts, called, added = Counter(tensors["labels"].tolist()), listed.get("classes", []), 0
    if run.has(ADDED):
        tensors, state = run.read_tensors(ADDED, ("labels", "classes"))
        state = check_fields(state, ADDED, run.path / ADDED)
        counts, called, added = counts + Counter(tensors["labels"].tolist()), state["classes"], len(state["names"])
    unlabelled = counts.pop(-1, 0)
    names = dict(zip(tensors["classes"].tolist(), called, strict=False))
    classes = {str(names.get(number, number)): count for number, count in sorted(counts.items())}
    labelled = sum(classes.values())
    found = {"examples": labelled + unlabelled, "added": added, "labelled": labelled, "unlabelled": unlabelled}
    return {"source": source} | found | {"columns": listed.get("columns", []), "classes": classes}
