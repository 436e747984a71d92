"""The ONNX file gives what the library gives, or there is no file; and the documentation's loaders do, too."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import semimetric
from semimetric.core.errors import InputError
from semimetric.data import Preprocess, apply_in_chunks, build_preprocess
from semimetric.encoders import RMAC, GoogLeNet, build_encoder, encode, encoder_names
from semimetric.metric import Metric
from semimetric.model.folder import load_run
from semimetric.pipeline.benchmark import fit_benchmark
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.serve import export
from semimetric.serve.export import export_onnx

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")

needs_onnx = pytest.mark.skipif(
    not all(find_spec(name) for name in PACKAGES), reason="needs onnx, onnxscript and onnxruntime"
)

Model = tuple[Preprocess, nn.Module, Metric]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator())


def model_for(encoder: nn.Module, preprocess: str, inputs: Tensor, components: int = 5) -> Model:
    """With batch statistics that are not those of a new network, and a metric of no particular scale."""
    scaling = build_preprocess(preprocess, inputs)
    with torch.no_grad():
        width = encoder.train()(scaling(inputs)).shape[1]
    factor = 30 * torch.randn(width, components, generator=generator(), dtype=torch.float64)
    return scaling, encoder, Metric(factor)


def vector_model(width: int = 7, count: int = 12) -> tuple[Model, Tensor]:
    inputs = torch.randn(count, width, generator=generator())
    return model_for(build_encoder("mlp", (width,), 0), "standardize", inputs), inputs


def library(model: Model, inputs: Tensor) -> Tensor:
    preprocess, encoder, metric = model
    return metric.transform(encode(encoder, apply_in_chunks(preprocess, inputs)))


def run_file(path: Path, inputs: np.ndarray) -> Tensor:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    return torch.from_numpy(session.run(["embeddings"], {"inputs": inputs})[0])


def check_file(model: Model, inputs: Tensor, path: Path) -> None:
    """Export on half of the inputs, compare on all of them: a batch that the export never saw."""
    half = len(inputs) // 2
    report = export_onnx(*model, inputs[:half], path)
    assert report["examples"] == half
    assert report["batches"] == sorted({1, 3, half})
    assert report["largest_difference"] < 1e-4
    assert report["bytes"] == path.stat().st_size
    expected = library(model, inputs)
    assert expected.abs().max() > 1
    torch.testing.assert_close(
        run_file(path, inputs.numpy()), expected, rtol=0, atol=2e-4 * float(expected.abs().max())
    )
    assert list(path.parent.iterdir()) == [path]


CASES = [
    ("linear", "none", (6,)),
    ("mlp", "standardize", (9,)),
    ("small-cnn", "mean-image", (2, 9, 10)),
    ("paper-mnist", "mean-image", (1, 28, 28)),
    ("paper-cifar10", "standardize", (3, 32, 32)),
    ("resnet9", "standardize", (3, 16, 16)),
    ("resnet9-512", "standardize", (3, 16, 16)),
]
SLOW_CASES = [
    ("wrn28-2", "standardize", (3, 16, 16)),  # the same operations as resnet9, in more layers
    ("googlenet", "imagenet", (3, 64, 64)),
    ("googlenet-avgmax", "imagenet", (3, 64, 64)),
    ("efficientnet-lite0", "imagenet", (3, 64, 64)),
    ("paper-cifar10", "whiten", (3, 32, 32)),  # eigenvectors of 3,072 dimensions
    ("googlenet-rmac", "imagenet", (3, 64, 72)),  # 512 pixels
    ("efficientnet-lite1", "imagenet", (3, 64, 64)),  # the same layers as lite0, only more
    ("efficientnet-lite2", "imagenet", (3, 64, 64)),
    ("efficientnet-lite2-gem", "imagenet", (3, 64, 64)),
    ("googlenet-avgmax-224", "imagenet", (3, 64, 64)),
]


def test_every_encoder_is_a_case() -> None:
    assert {name for name, _, _ in CASES + SLOW_CASES} == set(encoder_names())


@needs_onnx
@pytest.mark.parametrize(
    ("name", "preprocess", "shape"), CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES]
)
def test_every_encoder_gives_the_same_in_onnx(name: str, preprocess: str, shape: tuple, tmp_path: Path) -> None:
    count = 4 if name == "googlenet-rmac" else 14
    inputs = images(count, *shape) if len(shape) == 3 else torch.randn(count, *shape, generator=generator())
    encoder = build_encoder(name, shape, 0, init="he")
    check_file(model_for(encoder, preprocess, inputs), inputs, tmp_path / "model.onnx")


@needs_onnx
@pytest.mark.slow
def test_googlenet_with_batch_normalisation(tmp_path: Path) -> None:
    inputs = images(8, 3, 64, 64)
    torch.manual_seed(0)
    check_file(model_for(GoogLeNet(batch_norm=True), "imagenet", inputs), inputs, tmp_path / "model.onnx")


@needs_onnx
def test_rmac_of_more_images_than_its_chunk_larger_and_smaller_than_they_come(tmp_path: Path) -> None:
    inputs = images(10, 3, 24, 24)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU())
    encoder = RMAC(network, sides=(36, 16), levels=2, chunk=2)
    check_file(model_for(encoder, "standardize", inputs), inputs, tmp_path / "model.onnx")


@needs_onnx
@pytest.mark.parametrize("preprocess", ["none", "mean-image", "standardize", "whiten", "imagenet"])
def test_every_preprocessing_takes_raw_bytes(preprocess: str, tmp_path: Path) -> None:
    inputs = images(30, 3, 8, 8)
    inputs[0] = 77  # blank: of no contrast
    check_file(model_for(build_encoder("small-cnn", (3, 8, 8), 0), preprocess, inputs), inputs, tmp_path / "a.onnx")


@needs_onnx
def test_blank_rows_stay_zero_even_where_all_examples_are_blank(tmp_path: Path) -> None:
    inputs = torch.randn(6, 4, generator=generator())
    inputs[[0, 3]] = 0
    encoder = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU())
    model = build_preprocess("none", inputs), encoder, Metric.identity(8)
    assert export_onnx(*model, inputs[[0, 3]], tmp_path / "model.onnx")["largest_difference"] == 0
    found = run_file(tmp_path / "model.onnx", inputs.numpy())
    assert (found == 0).all(1).tolist() == [True, False, False, True, False, False]
    torch.testing.assert_close(found, library(model, inputs))


@needs_onnx
def test_the_file_says_what_it_takes_gives_and_is(tmp_path: Path) -> None:
    import onnx

    inputs = images(4, 1, 28, 28)
    model = model_for(build_encoder("small-cnn", (1, 28, 28), 0), "standardize", inputs, components=11)
    report = export_onnx(*model, inputs, str(tmp_path / "model.onnx"))
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    onnx.checker.check_model(proto, full_check=True)
    described = {
        value.name: (
            value.type.tensor_type.elem_type,
            [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim],
        )
        for value in (*proto.graph.input, *proto.graph.output)
    }
    assert described == {
        "inputs": (onnx.TensorProto.UINT8, ["batch", 1, 28, 28]),
        "embeddings": (onnx.TensorProto.FLOAT, ["batch", 11]),
    }
    notes = {entry.key: entry.value for entry in proto.metadata_props}
    assert notes["semimetric_version"] == proto.producer_version == semimetric.__version__
    assert json.loads(notes["input_shape"]) == [1, 28, 28]
    assert (notes["input_type"], notes["features"], notes["dimensions"]) == ("uint8", "64", "11")
    assert report["opset"] == proto.opset_import[0].version == 18
    assert str(Path(semimetric.__file__).parent).encode() not in (tmp_path / "model.onnx").read_bytes()


@needs_onnx
def test_other_numbers_than_bytes_are_fed_as_float32(tmp_path: Path) -> None:
    model, inputs = vector_model()
    for number, given in enumerate((inputs.double().numpy(), (9 * inputs).long())):
        path = tmp_path / f"{number}.onnx"
        export_onnx(*model, given, path)
        found = run_file(path, np.asarray(given).astype(np.float32))
        torch.testing.assert_close(found, library(model, torch.as_tensor(given)), rtol=0, atol=1e-3)


@needs_onnx
def test_what_float32_cannot_hold_is_refused(tmp_path: Path) -> None:
    inputs = torch.randn(20, 5, generator=generator(), dtype=torch.float64) + 1e9
    model = model_for(build_encoder("mlp", (5,), 0), "standardize", inputs)
    with pytest.raises(InputError, match="differs from the model by"):
        export_onnx(*model, inputs, tmp_path / "model.onnx")


@needs_onnx
def test_one_example_is_enough_for_any_batch(tmp_path: Path) -> None:
    model, inputs = vector_model()
    assert export_onnx(*model, inputs[:1], tmp_path / "model.onnx")["batches"] == [1, 3]
    expected = library(model, inputs)
    torch.testing.assert_close(run_file(tmp_path / "model.onnx", inputs.numpy()), expected, rtol=0, atol=1e-3)


@needs_onnx
def test_an_export_says_nothing(tmp_path: Path) -> None:
    code = """
import torch
from semimetric.data import build_preprocess
from semimetric.serve.export import export_onnx
from semimetric.metric import Metric

inputs = torch.rand(4, 3, 8, 8)
encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten())
export_onnx(build_preprocess("standardize", inputs), encoder, Metric.identity(288), inputs, "model.onnx")
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("", "")


@needs_onnx
def test_an_export_changes_nothing_of_the_model(tmp_path: Path) -> None:
    inputs = images(4, 3, 20, 20)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8))
    model = model_for(RMAC(network, sides=(20,), levels=1), "imagenet", inputs)
    encoder = model[1].train()
    encoder.network[1].eval()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    export_onnx(*model, inputs, tmp_path / "model.onnx")
    assert [module.training for module in encoder.modules()] == [True, True, True, False]
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


ROUNDING = nn.Sequential(nn.Linear(7, 512), nn.Tanh(), nn.Linear(512, 32))
"""Sums of so many terms, and a function that each library approximates in its own way."""


class Noisy(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.rand_like(inputs)


class Deciding(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if float(inputs.sum()) > 0 else -inputs


class Pairing(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([piece - piece.mean(0) for piece in inputs.split(2)])


@needs_onnx
@pytest.mark.parametrize(
    ("encoder", "tolerance", "existing", "message"),
    [
        (ROUNDING, 1e-14, True, r"differs from the model by \d.*in a batch of \d+, and tolerance is 1e-14"),
        (ROUNDING, 1e-14, False, "Nothing was written"),
        (Noisy(), 1e-4, True, "Nothing was written"),
        (Deciding(), 1e-4, False, "the encoder cannot be exported: torch cannot turn it into a graph"),
        (Pairing(), 1e-4, True, "must not depend on the size of the batch"),
    ],
)
def test_a_graph_that_differs_is_not_written(
    encoder: nn.Module, tolerance: float, existing: bool, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    if existing:
        path.write_text("the last good one")
    inputs = torch.randn(64, 7, generator=generator())
    model = model_for(encoder, "standardize", inputs)
    with pytest.raises(InputError, match=message):
        export_onnx(*model, inputs, path, tolerance)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the last good one"] * existing


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    model, inputs = vector_model()
    if all(find_spec(name) for name in PACKAGES[: PACKAGES.index(package)]):
        with pytest.raises(InputError, match=rf"needs the package {package}, .*pip install 'semimetric\[onnx\]'"):
            export_onnx(*model, inputs, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@needs_onnx
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"example_inputs": torch.zeros(0, 7)}, r"example_inputs must be a batch.*\(0, 7\)"),
        ({"example_inputs": torch.zeros(7)}, r"example_inputs must be a batch.*\(7,\)"),
        ({"example_inputs": torch.full((2, 7), torch.nan)}, "example_inputs has NaN"),
        ({"example_inputs": torch.zeros(2, 8)}, "inputs must have the shape that the preprocessing was fitted on"),
        ({"encoder": nn.Linear(6, 64)}, "the encoder cannot take inputs"),
        ({"metric": Metric.identity(9)}, "this metric is for 9"),
        ({"tolerance": -1.0}, "tolerance must be"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_written(changed: dict, message: str, tmp_path: Path) -> None:
    (preprocess, encoder, metric), inputs = vector_model()
    given = {"preprocess": preprocess, "encoder": encoder, "metric": metric, "example_inputs": inputs} | changed
    with pytest.raises(InputError, match=message):
        export_onnx(**given, path=tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@needs_onnx
def test_the_path_must_be_a_file_in_a_folder(tmp_path: Path) -> None:
    model, inputs = vector_model()
    with pytest.raises(InputError, match="is a folder"):
        export_onnx(*model, inputs, tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        export_onnx(*model, inputs, tmp_path / "missing" / "model.onnx")


@needs_onnx
def test_weights_that_do_not_fit_into_one_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = vector_model()
    monkeypatch.setattr(export, "LARGEST_FILE", 1000)
    with pytest.raises(InputError, match="do not fit into one ONNX file"):
        export_onnx(*model, inputs, tmp_path / "model.onnx")


def page_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def imported(block: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(block)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in names | {n.module for n in nodes if isinstance(n, ast.ImportFrom)}}


def digits_run(encoder: str, folder: Path) -> Tensor:
    """A short run in ``folder``/runs/digits, and its embedding of all digits by the library."""
    settings = resolve_benchmark("digits", "triplet", epochs=1, passes=2, encoder=encoder)
    fit_benchmark(settings, folder / "runs" / "digits", device="cpu")
    model = load_run(folder / "runs" / "digits", "cpu").fitted.model
    return library(
        (model.preprocess, model.encoder, model.metric), torch.from_numpy(load_digits().images).float()[:, None]
    )


@pytest.mark.parametrize("encoder", ["small-cnn", "mlp"])
def test_the_loader_of_the_page_needs_torch_alone(
    encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = digits_run(encoder, tmp_path)
    loader = page_blocks()[-1]
    assert imported(loader) == {"json", "pathlib", "torch", "safetensors", "sklearn"}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Tensor] = {}
    exec(loader, names)
    torch.testing.assert_close(names["embedding"], expected, rtol=0, atol=1e-5)


@needs_onnx
def test_the_page_exports_a_run_and_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    expected = digits_run("small-cnn", tmp_path)
    exporting, _, using, _ = page_blocks()
    assert imported(using) == {"onnxruntime", "sklearn"}
    monkeypatch.chdir(tmp_path)
    names: dict[str, np.ndarray] = {}
    exec(exporting, {})
    exec(using, names)
    assert "largest_difference" in capsys.readouterr().out
    torch.testing.assert_close(torch.from_numpy(names["embedding"]), expected, rtol=0, atol=1e-5)
