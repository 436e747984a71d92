from __future__ import annotations

import pytest
import torch

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
