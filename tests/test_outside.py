"""One of each part from outside of the package: a method, a dataset, an encoder, a search backend and a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PARTS = '''
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import make_moons
from torch import nn

import semimetric as sm
from semimetric.cli.console import RunFolder, print_json
from semimetric.core.settings import setting
from semimetric.methods.base import Method, Needs
from semimetric.methods.baseline import Targets
from semimetric.search.hits import Hits
from semimetric.search.index import Index, IndexBackend


@dataclass(frozen=True)
class Settings:
    margin: float = setting(0.0, "Distance that costs nothing.")


class Centres(Method):
    name, summary, reference = "centres", "close to the mean of the class", "a test"
    needs = Needs(labels=True, unlabelled=False, graph=False)
    Settings = Settings

    def constraints(self, features, labels):
        nodes = (labels >= 0).nonzero().flatten()
        return Targets(nodes, labels[nodes])

    def loss(self, metric, features, constraints):
        points = metric.transform(features)
        same = (constraints.targets[:, None] == constraints.targets).to(points)
        return torch.relu((points - same @ points / same.sum(1, keepdim=True)).square().sum(1)).mean()


def read():
    points, labels = make_moons(120, noise=0.1, random_state=0)
    examples = sm.Examples(torch.from_numpy(points).float(), torch.from_numpy(labels))
    return examples.subset(range(80)), examples.subset(range(80, 120))


MOONS = sm.DatasetSpec(
    name="moons", summary="two half circles", train_size=80, test_size=40, shape=(2,), class_names=("upper", "lower"),
    read=read, origin="generated",
)
WIDE = sm.EncoderSpec(name="wide", build=lambda shape, init: nn.Sequential(nn.Linear(shape[0], 9), nn.Tanh()))


class ListIndex(Index):
    def __init__(self, path):
        self.stored = torch.tensor(json.loads(Path(path).read_text()))
        self.width = self.stored.shape[1]

    def __len__(self):
        return len(self.stored)

    def search(self, queries, k):
        found = torch.cdist(queries.double(), self.stored.double()).topk(k, largest=False)
        return Hits(found.indices, found.values)


LIST = IndexBackend(
    name="list",
    places="a file ending in .list",
    open=lambda place, *_: ListIndex(place),
    build=lambda place, embeddings, *_: Path(place).write_text(json.dumps(embeddings.tolist())),
    suffixes=(".list",),
)


def count(run: RunFolder) -> None:
    """Count the examples of a run."""
    from semimetric.model.folder import load_run

    print_json({"examples": len(load_run(run, "cpu").fitted.labels)})
'''

ENTRY_POINTS = """
[semimetric.methods]
centres = parts:Centres
[semimetric.datasets]
moons = parts:MOONS
[semimetric.encoders]
wide = parts:WIDE
[semimetric.indexes]
list = parts:LIST
[semimetric.commands]
count = parts:count
"""


def semimetric(folder: Path, *words: str) -> str:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "semimetric", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_package_adds_one_of_each_without_touching_this_one(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "parts-1.0.dist-info").mkdir()
    (tmp_path / "parts-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n")
    (tmp_path / "parts-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    assert "count" in semimetric(tmp_path, "--help")
    fit = ["fit", "--dataset", "moons", "--method", "centres", "--encoder", "wide", "--labels-per-class", "5"]
    outcome = json.loads(semimetric(tmp_path, *fit, "--margin", "0.1", "--epochs", "2", "-o", "run", "--json"))
    assert (outcome["method"], outcome["dataset"], outcome["components"]) == ("centres", "moons", 9)
    assert json.loads(semimetric(tmp_path, "count", "run")) == {"examples": 80}
    semimetric(tmp_path, "index", "run", "--to", "run.list")
    query = "import numpy, parts; numpy.save('some.npy', parts.read()[0].inputs[:3].numpy())"
    subprocess.run([sys.executable, "-c", query], cwd=tmp_path, check=True)
    search = ["search", "run", "some.npy", "-k", "1", "--json"]
    exact, indexed = (json.loads(semimetric(tmp_path, *search, *more)) for more in ([], ["--index", "run.list"]))
    assert [line[0]["name"] for line in indexed["hits"].values()] == ["train 0", "train 1", "train 2"]
    assert exact["hits"].keys() == indexed["hits"].keys()
    assert json.loads(semimetric(tmp_path, "evaluate", "run", "--json"))["scores"] == outcome["final"]
