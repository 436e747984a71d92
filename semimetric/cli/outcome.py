"""What ``semimetric fit`` prints of a fit that has ended."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from semimetric.cli.console import counted, print_json, say, stdout
from semimetric.cli.entry import INTERRUPTED, tell_interrupted
from semimetric.cli.runs import SHOWN
from semimetric.reporting.tables import departures, per_cent, score_table
from semimetric.reporting.terminal import visible


def report(outcome: dict[str, Any], out: Path, as_json: bool) -> None:
    """Print the outcome; after Ctrl-C say what is kept, with exit code 130."""
    if as_json:
        print_json(outcome)
    elif "final" in outcome or not outcome.get("interrupted"):
        print_outcome(outcome)
    if outcome.get("interrupted"):
        tell_interrupted(
            f"after epoch {outcome['epochs']} the model so far is in {visible(str(out))}. Continue with the same "
            "command and --resume."
        )
        raise typer.Exit(INTERRUPTED)


def print_outcome(outcome: dict[str, Any]) -> None:
    """Scores of a benchmark, how far to trust pseudo-labels, and what to do next."""
    if "final" in outcome:
        _print_scores(outcome)
    if outcome.get("from"):
        say(f"started from {visible(outcome['from'])}; its labels cannot judge the pseudo-labels again")
    if outcome.get("frozen_share"):
        say(
            f"distance: {per_cent(outcome['frozen_share'])} frozen features, {per_cent(1 - outcome['frozen_share'])} "
            "learned, so that search among classes without labels stays as good as with the frozen network"
        )
    if outcome.get("trust"):
        say(f"Pseudo-labels after epoch {outcome['trust']['epoch']}: {outcome['trust']['sentence']}")
    tell_groups(outcome.get("new_groups", ()), say)
    if outcome["guards"]:
        say(departures(outcome["method"], outcome["guards"]))
    if outcome.get("skipped"):
        name, reason = next(iter(outcome["skipped_files"].items()))
        say(f"{outcome['skipped']} photographs are left out, the first {visible(name)} ({reason}); more in result.json")
    if "final" in outcome:
        which = "last" if outcome["selection"] == "last" else "best"
        epochs = f"{which} epoch {outcome['best_epoch']} of {outcome['planned_epochs']}"
        say(f"{epochs}, {outcome['seconds']:.0f} s on {outcome['device']}, run in {outcome['run']}")
        return
    took = ""
    if "epochs" in outcome:
        seconds = outcome["seconds"]
        took = f"{counted(outcome['epochs'], 'epoch')}, {seconds:.{0 if seconds >= 10 else 1}f} s on "
        took += f"{outcome['device']}, "
    examples = outcome["found"]["examples"]
    say(
        f"{outcome['method']}: {examples} examples in {outcome['components']} dimensions, {took}run in {outcome['run']}"
    )
    predict = "predict, " if outcome["found"]["labelled"] else ""
    say(f"next: semimetric search {shlex.quote(outcome['run'])} QUERY, or {predict}embed, suggest, index, export")


def tell_groups(groups: Sequence[Sequence[str]], tell: Callable[[str], None]) -> None:
    """Name the first examples of each group that looks like one more class."""
    for group in groups[:SHOWN]:
        tell(f"about {len(group)} examples look like one more class: {', '.join(map(visible, group[:SHOWN]))}, ...")


def _print_scores(outcome: dict[str, Any]) -> None:
    title = f"{outcome['method']} on {outcome['dataset']}, seed {outcome['seed']}: test set, per cent"
    initial, final = outcome["initial"], outcome["final"]
    stdout.print(score_table({"Initial": initial, "Final": final}, f"{title}, {outcome['components']} dimensions"))
    if outcome["best_epoch"] == 0 < outcome["epochs"]:
        say("No epoch beat the start: the model before training is kept.")
    if all(final[name] < initial[name] for name in ("nmi", "recall@1")):
        say(
            f"Training made it worse. docs/methods/{outcome['method']}.md says when that happens; other epochs or "
            "another lr may help."
        )
