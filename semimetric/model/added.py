"""Examples that were added to a run after training: one file, so that all of them are there or none."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from semimetric.core.errors import RunError
from semimetric.core.locks import locked
from semimetric.graph import Posteriors
from semimetric.model.fields import check_fields
from semimetric.model.fitted import FittedModel
from semimetric.model.origin import has_own_places, write_origin
from semimetric.training import Run

ADDED = "added.safetensors"


def write_added(run: Run, before: FittedModel, grown: FittedModel) -> None:
    """Write the examples that a run has beyond those of its training; ``before`` is the run as it was loaded."""
    with locked(run.path):
        _write(run, before, grown)
        run.seal()


def _write(run: Run, before: FittedModel, grown: FittedModel) -> None:
    earlier, state = run.read_tensors(ADDED) if run.has(ADDED) else ({"labels": before.labels[:0]}, None)
    trained = state["trained"] if state else len(before.labels)
    if trained + len(earlier["labels"]) != len(before.labels):
        raise RunError(f"{run.path} got other examples meanwhile, and nothing was added. Give the command again.")
    found, examples = grown.posteriors, grown.examples
    tensors = {
        "embeddings": grown.embeddings[trained:],
        "labels": grown.labels[trained:],
        "classes": found.classes,
        "shares": found.shares[trained:],
        "confidence": found.confidence[trained:],
    }
    if grown.labelled_inputs is not None:
        tensors["labelled_inputs"] = grown.labelled_inputs[int((grown.labels[:trained] >= 0).sum()) :]
    state = {"model": run.digest("model.safetensors"), "trained": trained}
    state |= {"names": examples.names[trained:], "digests": examples.digests[trained:]}
    state |= {"classes": [str(name) for name in examples.classes]}
    if has_own_places(run, before.examples):
        write_origin(run, examples, before.examples)
    run.write_tensors(ADDED, tensors, state)


def with_added(run: Run, fitted: FittedModel) -> FittedModel:
    """The model with the examples that were added after training."""
    tensors, state = run.read_tensors(ADDED)
    state = check_fields(state, ADDED, run.path / ADDED)
    if state["model"] != run.digest("model.safetensors") or state["trained"] != len(fitted.labels):
        raise RunError(
            f"{run.path / ADDED} belongs to another model: the run was trained again after examples were added. Remove "
            "that file, and add them again."
        )
    found, more = fitted.posteriors, len(tensors["classes"]) - len(fitted.posteriors.classes)
    shares = torch.cat([nn.functional.pad(found.shares, (0, more)), tensors["shares"]])
    known, inputs, more_inputs = fitted.examples, fitted.labelled_inputs, tensors.get("labelled_inputs")
    examples = dataclasses.replace(
        known,
        names=(*known.names, *state["names"]),
        digests=(*known.digests, *state.get("digests", ())),
        classes=(*known.classes, *state["classes"][len(known.classes) :]),
    )
    return dataclasses.replace(
        fitted,
        embeddings=torch.cat([fitted.embeddings, tensors["embeddings"]]),
        labels=torch.cat([fitted.labels, tensors["labels"]]),
        posteriors=Posteriors(tensors["classes"], shares, torch.cat([found.confidence, tensors["confidence"]])),
        examples=examples,
        unknown=None if more else fitted.unknown,
        labelled_inputs=None if inputs is None or more_inputs is None else torch.cat([inputs, more_inputs]),
    )
