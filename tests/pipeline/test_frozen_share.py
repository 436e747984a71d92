"""With a frozen network, distances have a share of its own features; classes are named by what was learned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.command import semimetric
from helpers.frozen import frozen_network
from helpers.own_photos import write_folder
from torch.nn.functional import normalize

from semimetric.core.errors import InputError
from semimetric.model.folder import LoadedRun, load_run
from semimetric.pipeline.data import read_inputs
from semimetric.serve.embed import new_examples


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """Photographs, runs with the default share, with none and with few dimensions, and the options of all."""
    home = tmp_path_factory.mktemp("shared")
    write_folder(home / "photos", 4, 9)
    with frozen_network(home) as network:
        options = [*network, "--epochs", "3", "--device", "cpu"]
        for name, more in (("run", []), ("none", ["--frozen-share", "0"]), ("few", ["--components", "4"])):
            done = semimetric("fit", home / "photos", "-o", home / name, *options, *more)
            assert done.code == 0, done.err
            assert ("distance: 50 % frozen features, 50 % learned" in done.out) == (name == "run")
        yield home, options


def inputs_of(loaded: LoadedRun, folder: Path) -> torch.Tensor:
    model = loaded.fitted.model
    return read_inputs(new_examples(loaded, folder), model.transform, model.device)[1]


def test_a_squared_distance_is_half_frozen_and_half_learned(home: tuple[Path, list[str]]) -> None:
    run, none = load_run(home[0] / "run"), load_run(home[0] / "none")
    frozen = normalize(inputs_of(run, home[0] / "photos").double())
    learned = normalize(none.fitted.embeddings)
    wanted = 0.5 * torch.cdist(frozen, frozen).square() + 0.5 * torch.cdist(learned, learned).square()
    found = run.fitted.embeddings
    torch.testing.assert_close(torch.cdist(found, found).square(), wanted, atol=1e-6, rtol=0)
    assert found.shape == (21, 24)
    assert run.fitted.facts["components"] == 24
    assert run.fitted.facts["frozen_share"] == run.fitted.spec.frozen_share == 0.5
    torch.testing.assert_close(run.fitted.model.embed(inputs_of(run, home[0] / "photos")), found)


def test_embeddings_do_not_depend_on_how_many_are_made_at_a_time(
    home: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "none", "few"):
        fitted = load_run(home[0] / name)
        inputs = inputs_of(fitted, home[0] / "photos")
        monkeypatch.setattr("semimetric.model.fitted.AT_ONCE", 100)
        whole = fitted.fitted.model.embed(inputs)
        monkeypatch.setattr("semimetric.model.fitted.AT_ONCE", 4)
        torch.testing.assert_close(fitted.fitted.model.embed(inputs), whole, atol=1e-12, rtol=0)
        bad = inputs.clone()
        bad[[6, 13]] = torch.nan
        with pytest.raises(InputError, match="2 of 21 embeddings are no numbers, the first of row 6"):
            fitted.fitted.model.embed(bad)


def test_classes_are_named_by_what_was_learned(home: tuple[Path, list[str]]) -> None:
    run, none = (load_run(home[0] / name).fitted for name in ("run", "none"))
    learned = none.embeddings[:7]
    asked = normalize(learned + 0.3 * torch.randn(learned.shape, generator=torch.Generator().manual_seed(0)).double())
    queries = torch.cat([torch.zeros(7, 12).double(), asked], 1)  # a frozen part that says nothing
    wanted = none.__class__(
        none.model, none.spec, normalize(none.embeddings), none.labels, none.posteriors, none.examples
    ).probabilities(asked)
    torch.testing.assert_close(run.probabilities(queries * 0.5**0.5), wanted, atol=1e-5, rtol=0)


def test_given_dimensions_leave_no_room_for_frozen_features(home: tuple[Path, list[str]], tmp_path: Path) -> None:
    assert load_run(home[0] / "few").fitted.embeddings.shape == (21, 4)
    asked = ("fit", home[0] / "photos", "-o", tmp_path / "x")
    both = semimetric(*asked, *home[1], "--components", 4, "--frozen-share", 0.2)
    assert "components sets the dimensions of the embedding" in both.sentence()
    much = semimetric(*asked, *home[1], "--frozen-share", 1)
    assert "frozen_share must be from 0 to below 1, got 1.0" in much.sentence()
    scratch = semimetric(*asked, "--frozen-share", 0.5)
    assert "frozen_share is for the features of a frozen pretrained network" in scratch.sentence()
    assert not (tmp_path / "x").exists()


def test_the_export_has_both_parts(home: tuple[Path, list[str]], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    facts = semimetric(
        "export", home[0] / "run", "--onnx", "--check", home[0] / "photos", "-o", tmp_path / "model.onnx", "--json"
    ).json()
    assert facts["largest_difference"] < 1e-5
    notes = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert int(notes["dimensions"]) == load_run(home[0] / "run").fitted.model.width
