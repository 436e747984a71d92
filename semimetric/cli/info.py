"""``semimetric info``: what a run holds and how it was made."""

from __future__ import annotations

from typing import Any

from semimetric.cli.console import AsJson, RunFolder, counted, print_json, say, stdout
from semimetric.core.toml import as_toml
from semimetric.encoders.registry import takes_photographs
from semimetric.reporting.tables import departures, score_table

SHOWN_CLASSES = 12
"""Classes that the terminal names; --json names all."""


def info(run: RunFolder, as_json: AsJson = False) -> None:
    """Show what a run was made of: data, labels, network, settings in force, scores, sizes and versions."""
    from semimetric.model.folder import explaining
    from semimetric.serve.info import describe_run
    from semimetric.training.run import Run

    with explaining(Run(run)):
        found = describe_run(run)
        if as_json:
            print_json(found)
        else:
            _print(found)


def _print(found: dict[str, Any]) -> None:
    for name, line in _lines(found).items():
        if line:
            say(f"{name:<11} {line}")
    if "final" in found["result"]:
        rows = {name.capitalize(): found["result"][name] for name in ("initial", "final")}
        stdout.print(score_table(rows, "test set, per cent"))
    if found["settings"]:
        say(f"\nsettings in force (for 'fit --config FILE'):\n\n{as_toml(found['settings'])}")


def _lines(found: dict[str, Any]) -> dict[str, str]:
    """Headings and what stands beside them; empty where a run has nothing to say."""
    trust = found["result"].get("trust") or {}
    largest = sorted(found["files"].items(), key=lambda file: -file[1])[:3]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return {
        "run": f"{found['run']} ({found['kind']}, {'finished' if found['finished'] else 'not finished'})",
        "data": _data(found["data"]),
        "classes": _classes(found["data"].get("classes", {})),
        "network": _network(found["model"], found["settings"].get("network", {}).get("weights", "")),
        "training": _training(found["result"]),
        "trust": trust.get("sentence", ""),
        "changed": departures(found["result"].get("method", ""), found["result"].get("guards", [])),
        "size": f"{size(found['bytes'])}: " + ", ".join(f"{name} {size(count)}" for name, count in largest),
        "written by": versions,
        "note": found["differences"],
    }


def _data(data: dict[str, Any]) -> str:
    if "examples" not in data:
        return str(data["source"])
    width = f" of {counted(len(data['columns']), 'feature')}" if data["columns"] else ""
    labels = f"{data['labelled']} labelled, {data['unlabelled']} unlabelled"
    added = f" ({data['added']} of them added later)" if data["added"] else ""
    told = f"{counted(data['examples'], 'example')}{width}{added}, {labels}"
    return f"{data['source']}: {told}" if data["source"] else told


def _classes(classes: dict[str, int]) -> str:
    """The number of classes, and the labels of the first ones."""
    if not classes:
        return ""
    named = ", ".join(f"{name} {count}" for name, count in list(classes.items())[:SHOWN_CLASSES])
    more = f" and {len(classes) - SHOWN_CLASSES} more" if len(classes) > SHOWN_CLASSES else ""
    return f"{len(classes)}, with labels: {named}{more}"


def _network(model: dict[str, Any], weights: str) -> str:
    if "encoder" not in model:
        return ""
    side = f" on {model['side']} x {model['side']} pixels ({model['fit']})" if model["side"] else ""
    frozen = f"{model['backbone']}{side}, frozen, then " if model["backbone"] else ""
    encoder = model["encoder"] or model["module"]
    trained = "a linear metric" if encoder == "none" else encoder + ("" if frozen else side)
    trained += ", fine-tuned" if takes_photographs(encoder) and weights != "random" else ""
    trained += ", averaged with mirror images" if model.get("mirror") else ""
    width = "" if model["components"] is None else f"; embedding of {counted(model['components'], 'dimension')}"
    return f"{frozen}{trained}{width}"


def _training(result: dict[str, Any]) -> str:
    if "method" not in result:
        return ""
    told = f"{result['method']}, seed {result['seed']}"
    if "epochs" not in result:
        return f"{told}, on {result['device']}"
    which = "" if result["selection"] == "last" else f", best {result['best_epoch']}"
    epochs = f"{result['epochs']} of {counted(result['planned_epochs'], 'epoch')}{which}"
    start = f", started from {result['from']}" if "from" in result else ""
    return f"{told}: {epochs}, {result['seconds']:.1f} s on {result['device']}{start}"


def size(count: int) -> str:
    """Bytes in a unit for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.{0 if unit == 'B' else 1}f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
