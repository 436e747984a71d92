"""What the quality benchmarks measure besides the scores of a run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from semimetric.data import load_dataset
from semimetric.encoders import encode
from semimetric.methods.baseline import SHARPNESS
from semimetric.model.folder import load_run
from semimetric.pipeline.benchmark import fit_benchmark
from semimetric.pipeline.resolve import resolve_benchmark
from semimetric.training import Run


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("jobs", Path(__file__).parents[2] / "benchmarks" / "jobs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "jobs", module)  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def test_the_head_sees_the_features_and_not_the_whitened_embedding(jobs: ModuleType, tmp_path: Path) -> None:
    values = {"epochs": 3, "passes": 1, "metric": "whitened", "components": 0, "shrinkage": 0.1}
    plan = resolve_benchmark("digits", "consensus", **values)
    fit_benchmark(plan, tmp_path / "run", device="cpu")
    found = jobs.head_accuracy(Run.open(tmp_path / "run"), plan, None, "cpu")
    fitted = load_run(tmp_path / "run").fitted
    tensors, _ = Run.open(tmp_path / "run").read_tensors("model.safetensors")
    test = load_dataset("digits").test
    features = encode(fitted.model.encoder, fitted.model.preprocess(test.inputs))
    logits = SHARPNESS * features @ tensors["method.head.weight"].T + tensors["method.head.bias"]
    right = tensors["method.classes"][logits.argmax(1)] == test.labels
    assert found == {"head_accuracy": pytest.approx(float(right.double().mean()), abs=1 / len(right))}
    assert found["head_accuracy"] > 0.5
    embedded = features.double() @ tensors["metric.factor"]
    wrong = SHARPNESS * embedded @ tensors["method.head.weight"].double().T + tensors["method.head.bias"]
    assert not torch.equal(wrong.argmax(1), logits.argmax(1))
