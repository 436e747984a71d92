"""A trained model as one ONNX file, from raw inputs to the embedding, for places without this library or torch."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import semimetric
from semimetric.core.arrays import as_tensor, check_finite
from semimetric.core.checks import check_not_negative
from semimetric.core.errors import InputError, RunError
from semimetric.core.extras import import_extra
from semimetric.core.files import check_output, write_atomically
from semimetric.data import Preprocess, apply_in_chunks, build_preprocess
from semimetric.data.readers.delimited import listed
from semimetric.data.schema import Schema
from semimetric.encoders import RMAC, encode, features_of, output_width
from semimetric.encoders.features import blended
from semimetric.metric import Metric
from semimetric.model.folder import LoadedRun
from semimetric.serve.embed import new_examples

OPSET = 18  # version of ONNX's operators: the first that averages where it makes images smaller, as R-MAC does
LARGEST_FILE = 2**31 - 2**20
"""Bytes of weights that fit into one file: ONNX is a protocol buffer, and those end at 2 GiB."""


EXAMPLES = 16  # of a run, that an export is checked on


class Embedder(nn.Module):
    """Raw inputs (N, ...) to embeddings (N, l): L^T times the unit features of the scaled inputs.

    Without an encoder, L^T times the scaled inputs themselves. With a ``frozen_share`` the encoder is a
    ``WithBackbone``, whose backbone's features have that share in squared distances.
    """

    factor: Tensor

    def __init__(
        self, preprocess: Preprocess, encoder: nn.Module | None, metric: Metric, frozen_share: float = 0.0
    ) -> None:
        super().__init__()
        self.frozen_share = frozen_share
        self.preprocess = preprocess
        self.encoder = encoder
        self.register_buffer("factor", metric.factor.float())

    def forward(self, inputs: Tensor) -> Tensor:
        """One row for each input."""
        scaled = self.preprocess(inputs)
        if self.frozen_share and isinstance(self.encoder, WithBackbone):
            frozen = features_of(self.encoder.backbone, scaled)
            return blended(frozen, features_of(self.encoder.encoder, frozen) @ self.factor, self.frozen_share)
        features: Tensor = scaled if self.encoder is None else features_of(self.encoder, scaled)
        return features @ self.factor


def export_onnx(
    preprocess: Preprocess,
    encoder: nn.Module | None,
    metric: Metric,
    example_inputs: Any,
    path: Path | str,
    tolerance: float = 1e-4,
    frozen_share: float = 0.0,
) -> dict[str, Any]:
    """Write the model as one ONNX file that takes ``inputs`` (N, ...) and gives ``embeddings`` (N, l), for any N.

    The file is run by onnxruntime before it is put in place, on batches of 1, 3 and all examples. Where it does not
    give what the library gives for ``example_inputs`` nothing is written, and a file that was there before stays.

    Parameters
    ----------
    preprocess, encoder, metric
        What a run or a training result holds; none of them is changed. Without an encoder the metric is of the scaled
        inputs, which are vectors.
    example_inputs : array-like (n, ...)
        Raw inputs, real ones, of the shape that the graph will take. It takes uint8 where these are uint8 and float32
        where they are any other numbers; what is lost by rounding them to float32 counts as a difference.
    frozen_share : float
        Share of a backbone's own features in squared distances; the encoder is then a ``WithBackbone``.
    tolerance : float
        Largest difference in any entry of the embedding, as a share of its largest entry.

    Returns
    -------
    dict
        ``examples`` and ``batches`` that were compared, ``largest_difference`` in the sense of ``tolerance``,
        ``opset``, and ``bytes`` of the file.
    """
    path = Path(path)
    needed = ("onnx", "onnxruntime", "onnxscript")  # torch needs the last one, and would say so less clearly
    onnx, runtime, _ = (import_extra(name, "onnx", "an export to ONNX") for name in needed)
    check_not_negative(tolerance, "tolerance")
    inputs = _check_inputs(example_inputs)
    check_output(path, replace=True, option="path", in_run=True)
    preprocess, encoder = copy.deepcopy(preprocess).cpu().eval(), copy.deepcopy(encoder)
    encoder = None if encoder is None else encoder.cpu().eval()
    metric = metric.to("cpu")
    expected = _library_embeddings(preprocess, encoder, metric, inputs, frozen_share)
    fed = inputs if inputs.dtype == torch.uint8 else inputs.float()

    graph = _graph(onnx, Embedder(preprocess, encoder, metric, frozen_share).eval(), fed)
    checked: dict[str, Any] = {}

    def write(temporary: Path) -> None:
        temporary.write_bytes(graph.SerializeToString())
        checked.update(_compare(runtime, temporary, fed, expected, tolerance))

    try:
        write_atomically(path, write)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}. Make room, or choose another path.") from error
    opset = next(int(entry.version) for entry in graph.opset_import if entry.domain == "")
    return {"examples": len(inputs)} | checked | {"opset": opset, "bytes": path.stat().st_size}


def _check_inputs(example_inputs: Any) -> Tensor:
    inputs = as_tensor(example_inputs, "example_inputs").cpu()
    if inputs.ndim < 2 or inputs.numel() == 0 or inputs.is_complex():
        raise InputError(
            "example_inputs must be a batch of at least one example (n, ...) of real numbers, got "
            f"{inputs.dtype} of shape {tuple(inputs.shape)}. Give some raw inputs of the test set."
        )
    check_finite(inputs, "example_inputs")
    return inputs


def _library_embeddings(
    preprocess: Preprocess, encoder: nn.Module | None, metric: Metric, inputs: Tensor, frozen_share: float
) -> Tensor:
    """What the graph must give: embeddings by the same road as those of an evaluation."""
    scaled = apply_in_chunks(preprocess, inputs)
    if encoder is None:
        return metric.transform(scaled)
    output_width(encoder, scaled)  # says what is wrong with an encoder that does not fit
    if frozen_share and isinstance(encoder, WithBackbone):
        frozen = encode(encoder.backbone, scaled)
        return blended(frozen, metric.transform(encode(encoder.encoder, frozen)), frozen_share)
    return metric.transform(encode(encoder, scaled))


def _graph(onnx: ModuleType, model: Embedder, fed: Tensor) -> Any:
    """The model as a graph with its weights inside, an ``onnx.ModelProto``, for any number of inputs as ``fed``."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if size > LARGEST_FILE:
        raise InputError(
            f"the encoder's {size:,} bytes of weights do not fit into one ONNX file, which ends at {LARGEST_FILE:,}. "
            "Export a smaller encoder."
        )
    _keep_batches_whole(model)
    with torch.no_grad(), _refusing("torch cannot turn it into a graph"), _quiet():
        # of two examples: a batch of one would be taken for a constant
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(model, (_rows(fed, 2),), dynamic_shapes=shapes, strict=False)
        exported: Any = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            optimize=True,
            opset_version=OPSET,
            input_names=["inputs"],
            output_names=["embeddings"],
        )
    graph = exported.model_proto
    _forget_notes(graph)
    _describe(onnx, graph, model, fed)
    return graph


def _keep_batches_whole(model: nn.Module) -> None:
    """Let no R-MAC split a batch, whose size a graph does not know.

    It splits in evaluation mode only, to spare memory. Its network stays in that mode, and so do its sizes.
    """
    for module in model.modules():
        if isinstance(module, RMAC):
            module.training, module.training_sides = True, module.sides


@contextmanager
def _refusing(reason: str) -> Iterator[None]:
    """Name the encoder as the cause of whatever another library raises: each has its own kinds of errors for it."""
    try:
        yield
    except Exception as error:
        summary = " ".join(str(error).split())[:400]
        raise InputError(
            f"the encoder cannot be exported: {reason} ({type(error).__name__}: {summary}). "
            "Its forward must not depend on the size of the batch or on values of its inputs; change that, or load "
            "its weights where it is needed."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch's exporter tells its own developers: deprecations, and operators that nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _forget_notes(graph: Any) -> None:
    """Take out the exporter's notes, among them lines of source with their paths on this machine."""
    body = graph.graph
    for part in (body, *body.node, *body.input, *body.output, *body.initializer):
        part.ClearField("metadata_props")
    body.ClearField("value_info")


def _describe(onnx: ModuleType, graph: Any, model: Embedder, fed: Tensor) -> None:
    """Say in the file what it takes, what it gives and what made it."""
    for value in (*graph.graph.input, *graph.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    graph.producer_name, graph.producer_version = "semimetric", semimetric.__version__
    features, dimensions = model.factor.shape
    notes = {
        "semimetric_version": semimetric.__version__,
        "input_shape": json.dumps(list(fed.shape[1:])),
        "input_type": str(fed.dtype).removeprefix("torch."),
        "features": str(features),
        "dimensions": str(dimensions + (features if model.frozen_share else 0)),
    }
    onnx.helper.set_model_props(graph, notes)


def _rows(inputs: Tensor, count: int) -> Tensor:
    """The first ``count`` inputs, from the beginning again where there are not as many."""
    return inputs[torch.arange(count) % len(inputs)]


def _compare(runtime: ModuleType, file: Path, fed: Tensor, expected: Tensor, tolerance: float) -> dict[str, Any]:
    """Run the file on batches of several sizes; refuse it where it differs from ``expected`` (n, l)."""
    batches = sorted({1, 3, len(fed)})
    scale = float(expected.abs().max()) or 1.0
    largest = 0.0
    with _refusing("onnxruntime cannot run its graph"):
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        found = {size: session.run(["embeddings"], {"inputs": _rows(fed, size).numpy()})[0] for size in batches}
    for size, rows in found.items():
        difference = float((torch.from_numpy(rows) - _rows(expected, size)).abs().max()) / scale
        if not difference <= tolerance:  # also where either is no number
            raise InputError(
                f"the ONNX graph differs from the model by {difference:.3g} of the largest entry of the embedding, in "
                f"a batch of {size}, and tolerance is {tolerance:g}. Nothing was written; allow more if that is good "
                "enough, or give example_inputs that float32 can hold to an encoder without random numbers."
            )
        largest = max(largest, difference)
    return {"batches": batches, "largest_difference": largest}


class WithBackbone(nn.Module):
    """A frozen network and the encoder of its unit features, as one network."""

    def __init__(self, backbone: nn.Module, encoder: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        """Features of images (N, 3, H, W) that are scaled as the backbone expects."""
        features: Tensor = self.encoder(features_of(self.backbone, images))
        return features


def export_run(loaded: LoadedRun, out: Path, check: Path | None = None, tolerance: float = 1e-4) -> dict[str, Any]:
    """The model of a run as one ONNX file, checked on the examples in ``check``."""
    _check_numbers(loaded.fitted.schema)
    model = loaded.fitted.model
    examples = _some_inputs(loaded, check)
    preprocess, encoder = model.preprocess, model.encoder
    if model.transform is not None and model.transform.network is not None:
        assert encoder is not None
        preprocess, encoder = build_preprocess("imagenet", examples), WithBackbone(model.transform.network, encoder)
    facts = export_onnx(preprocess, encoder, model.metric, examples, out, tolerance, model.frozen_share)
    return facts | {"out": str(out)}


def _check_numbers(schema: Schema | None) -> None:
    """Refuse columns that are more than numbers: a graph takes numbers alone."""
    if schema is None or not schema.encodes:
        return
    others = [f"{column.name} ({column.kind})" for column in schema.columns if column.kind != "numeric"]
    others = others or [f"{column.name} (gaps)" for column in schema.columns if column.gaps]
    raise InputError(
        f"an ONNX graph takes numbers, and the run was trained on columns that are more than that: {listed(others)}. "
        "Fit with --columns on numbers without gaps, or use the run itself with 'semimetric embed'."
    )


def _some_inputs(loaded: LoadedRun, source: Path | None) -> Tensor:
    """The first examples of a folder or table, as the graph is to take them."""
    if source is None:
        known = loaded.fitted.examples.source
        where = f", such as {known!r}, on which the run was trained" if known else ""
        raise InputError(f"an export is checked on examples. Name a folder or table of some{where}: --check PATH.")
    if not source.exists():
        raise InputError(f"--check {str(source)!r} is not there. Name a folder or table of examples.")
    found = new_examples(loaded, source)
    transform = loaded.fitted.model.transform
    if found.paths is None or transform is None:
        assert found.features is not None
        return found.features[:EXAMPLES]
    _, images, skipped = dataclasses.replace(transform, network=None).read(found.paths[:EXAMPLES], torch.device("cpu"))
    if len(images) == 0:
        raise InputError(f"none of the first photographs in {source} can be decoded ({next(iter(skipped.values()))}).")
    return images
