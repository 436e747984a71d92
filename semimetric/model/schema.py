"""The columns of a table in a run folder.

schema.json         types, categories, words, and what fills a gap
schema.safetensors  weights of words, where there are columns of text
"""

from __future__ import annotations

import torch

from semimetric.core.errors import RunError
from semimetric.data.schema import Schema
from semimetric.training import Run


def write_schema(run: Run, schema: Schema) -> None:
    """Write the columns of a table."""
    run.write("schema.json", schema.as_dict())
    arrays = {name: torch.from_numpy(array) for name, array in schema.arrays().items()}
    if arrays:
        run.write_tensors("schema.safetensors", arrays)


def read_schema(run: Run, width: int) -> Schema | None:
    """The columns of a table, which make ``width`` features; None for a run of something else, or of an array."""
    written = run.read("schema.json")
    if written is None:
        return None
    has_text = any(entry["type"] == "text" for entry in written["columns"])
    tensors = run.read_tensors("schema.safetensors")[0] if has_text else {}
    schema = Schema.restore(written, {name: tensor.numpy() for name, tensor in tensors.items()})
    if schema.width != width:
        raise RunError(
            f"{run.path} is damaged: schema.json gives {schema.width} features, and the model takes {width}. Start "
            "again with another --out."
        )
    return schema
