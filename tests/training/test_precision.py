from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from semimetric.encoders import encode, unit_features
from semimetric.encoders.features import arranged, as_loaded, features_of

SETTINGS = {"method": "consensus", "optimizer": "adamw", "lr": 1e-3, "selection": "last", "average": 0.9}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_features_have_unit_length_whatever_the_encoder_computes_in(make_trainer, precision: str) -> None:
    trainer = make_trainer(precision=precision, **SETTINGS)
    features = trainer._features(trainer.data.inputs)
    assert features.dtype == torch.float32
    assert torch.allclose(features.norm(dim=1), torch.ones(90), atol=1e-5)


def test_half_precision_trains_nearly_the_same_and_keeps_its_weights_whole(make_trainer) -> None:
    whole, half = (make_trainer(precision=precision, **SETTINGS) for precision in ("float32", "bfloat16"))
    for trainer in (whole, half):
        start = [parameter.detach().clone() for parameter in trainer.encoder.parameters()]
        result = trainer.fit()
        ends = list(result.encoder.parameters())
        assert all(parameter.dtype == torch.float32 for parameter in ends)
        assert all(not torch.equal(a, b) for a, b in zip(start, ends, strict=True))
    rows = torch.arange(90)
    assert not torch.equal(whole._embed(rows), half._embed(rows))
    cosines = (whole._features(whole.data.inputs) * half._features(half.data.inputs)).sum(1)
    assert float(cosines.mean()) > 0.9


class Witness(nn.Module):
    """Flattens its inputs, and notes how they lie in memory and what autocast is set to."""

    def __init__(self) -> None:
        super().__init__()
        self.channels_last: list[bool] = []
        self.half: list[bool] = []
        self.cached: list[bool] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.channels_last.append(inputs.ndim == 4 and inputs.is_contiguous(memory_format=torch.channels_last))
        self.half.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16)
        self.cached.append(torch.is_autocast_cache_enabled())
        return inputs.flatten(1)


IMAGES = torch.randn(6, 3, 4, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("of", [features_of, encode])
def test_half_precision_wants_channels_last_and_no_cache_that_a_recording_could_not_hold(of) -> None:
    witness = Witness()
    features = of(witness, IMAGES, precision="bfloat16")
    assert (witness.channels_last, witness.half, witness.cached) == ([True], [True], [False])
    assert features.dtype == torch.float32
    assert torch.equal(features, unit_features(IMAGES.flatten(1)))  # nothing but where it lies has changed
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("of", [features_of, encode])
def test_whole_precision_leaves_images_where_they_are(of) -> None:
    witness = Witness()
    of(witness, IMAGES)
    assert (witness.channels_last, witness.half) == ([False], [False])


def test_vectors_have_no_channels_to_put_last() -> None:
    witness = Witness()
    features_of(witness, IMAGES.flatten(1), "bfloat16")
    assert (witness.half, witness.cached) == ([True], [False])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_steps_and_graphs_alike_are_computed_in_the_precision_asked_for(make_trainer, precision: str) -> None:
    trainer = make_trainer(precision=precision, **SETTINGS)
    seen: set[tuple[bool, bool]] = set()
    trainer.encoder.register_forward_pre_hook(
        lambda encoder, inputs: seen.add((encoder.training, torch.is_autocast_enabled("cpu")))
    )
    trainer._train_epoch()
    half = precision == "bfloat16"
    assert seen == {(True, half), (False, half)}


@pytest.mark.parametrize("there", [True, False])
def test_auto_is_half_precision_for_images_where_the_processor_has_it(monkeypatch, there: bool) -> None:
    monkeypatch.setattr("semimetric.encoders.features.has_bfloat16", lambda: there)
    witness = Witness()
    features_of(witness, IMAGES, "auto")
    features_of(witness, IMAGES.flatten(1), "auto")
    assert witness.half == [there, False]
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(24, 5))
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    placed = arranged(network, "auto")
    assert placed[0].weight.is_contiguous(memory_format=torch.channels_last) == there
    assert all(value.is_contiguous() for value in as_loaded(placed).state_dict().values())
    assert all(torch.equal(value, weights[name]) for name, value in placed.state_dict().items())
    arranged(nn.Conv3d(3, 4, 3), "auto")  # whose channels cannot be put last
    assert not arranged(network, "float32")[0].weight.is_contiguous(memory_format=torch.channels_last)
