"""The registry of methods: unknown names, and methods from outside of the package."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.methods import METHODS, Method, Needs, Targets, build_method, method_names
from semimetric.methods.defaults import ADAMW
from semimetric.pipeline.presets import own_values, preset_values

GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"
OFFERED = textwrap.dedent(GUIDE.read_text().split("```python\n")[1].split("```")[0])
"""The complete method of the guide."""

TRAIN = """
import semimetric as sm
from semimetric.methods import method_names

assert method_names()[-1] == "centres"
assert not {"torch", "outside"} & sys.modules.keys()  # names need no import
import torch

points = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
data = sm.TrainingData(points, torch.arange(40) % 4)
settings = sm.training_settings("centres", epochs=2, lr=0.1, selection="last")
print(sm.Trainer(torch.nn.Linear(6, 3), sm.build_method("centres", margin=0.1), data, settings).fit().epochs)
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Method[Any]]:
    """The class of the guide, from a module of its own."""
    (tmp_path / "outside.py").write_text(OFFERED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "outside", raising=False)
    return importlib.import_module("outside").Centres


@pytest.fixture
def register() -> Iterator[Callable[[type[Method[Any]]], type[Method[Any]]]]:
    """``register_method``, undone after the test."""
    before = dict(METHODS._loaded)
    yield sm.register_method
    METHODS._loaded.clear()
    METHODS._loaded.update(before)


def trained(method: Method[Any]) -> tuple[float, float]:
    """Variance of the labelled examples within their classes, before and after training."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    points = torch.randn(60, 8, generator=generator) + 2 * labels[:, None]
    data = sm.TrainingData(points, torch.where(torch.arange(60) < 30, labels, -1))
    torch.manual_seed(0)
    settings = sm.training_settings(method.name, epochs=5, lr=0.1, batch_size=30, selection="last")
    trainer = sm.Trainer(nn.Linear(8, 4), method, data, settings)

    def spread() -> float:
        rows = trainer.data.labelled
        embedded, classes = trainer._embed(rows), trainer.data.labels[rows]
        return float(sum(embedded[classes == name].var(0, correction=0).sum() for name in range(3)))

    before = spread()
    assert trainer.fit().epochs == 5
    return before, spread()


def test_a_registered_method_is_built_by_name_and_trained(register, outside) -> None:
    kind = register(outside)
    assert kind.name == "centres"
    assert METHODS["centres"] is kind
    assert method_names()[-1] == "centres"
    before, after = trained(sm.build_method("centres"))
    assert after < 0.9 * before
    with pytest.raises(InputError, match=r"method 'centres' has no setting 'margn'. Did you mean 'margin'"):
        sm.build_method("centres", margn=1.0)


def test_it_has_defaults_everywhere_without_naming_a_dataset(register, outside) -> None:
    images = {"margin": 0.5}
    kind = register(type("Own", (outside,), {"training_defaults": ADAMW, "defaults_on": {"images": images}}))
    assert own_values("centres", "images") == ADAMW | images
    assert own_values("centres", "vectors") == ADAMW
    assert preset_values("default", "mnist", "centres")["margin"] == 0.5
    assert preset_values("default", "mnist", "centres")["optimizer"] == "adamw"
    assert "margin" not in preset_values("default", "cub200", "centres")
    assert list(kind.space) == ["lr", "margin"]
    assert sm.training_settings("centres").optimizer == "adamw"
    with pytest.raises(InputError, match="preset 'paper' has no settings for method 'centres'"):
        preset_values("paper", "mnist", "centres")


def test_the_estimator_takes_it_by_name(register, outside) -> None:
    register(outside)
    points = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)).numpy()
    model = sm.SemiMetric("centres", epochs=2, settings={"lr": 0.01}, random_state=0).fit(
        points, [i % 4 for i in range(40)]
    )
    assert model.transform(points).shape[0] == 40


def test_a_name_that_is_taken_is_refused(register, outside) -> None:
    register(outside)
    assert register(outside) is outside  # a notebook cell that is run twice
    with pytest.raises(InputError, match="there is a method 'centres' already"):
        register(type("Other", (outside,), {}))
    with pytest.raises(InputError, match="there is a method 'lrml' already"):
        register(type("Other", (outside,), {"name": "lrml"}))


@dataclass(frozen=True)
class Silent:
    margin: float = 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Settings": Silent}, r"Broken.Settings has fields without a help sentence: margin. Define each with"),
        ({"Settings": dict}, r"Broken.Settings must be a dataclass, got <class 'dict'>"),
        ({"Settings": Silent()}, "Broken.Settings must be a dataclass, got Silent"),
    ],
)
def test_settings_without_help_are_refused(register, outside, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        register(type("Broken", (outside,), changes))
    assert "centres" not in METHODS


def test_a_class_that_lacks_something_is_refused(register) -> None:
    class Empty(Method):
        name = "empty"
        needs = Needs(labels=False, unlabelled=True, graph=False)

    with pytest.raises(InputError, match="method class Empty lacks summary, reference, Settings, constraints, loss"):
        register(Empty)
    for other in (Silent, Targets, "centres", None):
        with pytest.raises(InputError, match=r"a method must be a class derived from semimetric.methods.Method, got"):
            register(other)


def test_an_installed_package_offers_a_method(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(OFFERED)
    about = tmp_path / "outside-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[semimetric.methods]\ncentres = outside:Centres\n")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n" + TRAIN
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2"]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="must be one of consensus, affinity-triplets"):
        build_method("magic")
    with pytest.raises(InputError, match="Did you mean 'gamma'"):
        build_method("affinity-triplets", gama=0.9)
