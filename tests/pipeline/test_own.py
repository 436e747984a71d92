"""Own data are planned before photographs are read, and again without those that cannot be decoded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.own_photos import write_folder

from semimetric.data.readers.read import read_collection
from semimetric.encoders import build_encoder
from semimetric.pipeline import network
from semimetric.pipeline.own import OwnRequest, read_own


@pytest.mark.parametrize(("fewer", "encoder"), [(0, "resnet9-512"), (1, "resnet9")])
def test_a_damaged_photograph_does_not_change_the_network(
    fewer: int, encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = write_folder(tmp_path / "photos", labelled=4, unlabelled=6)
    (photos / "damaged.jpg").write_text("no picture")
    collection = read_collection(photos)
    choose = network._for_images
    monkeypatch.setattr(network, "installed_encoder", lambda: None)
    monkeypatch.setattr(network, "_for_images", lambda side, _, number: choose(side, torch.device("cuda"), number))
    monkeypatch.setattr(network, "MANY_IMAGES", len(collection.names) + fewer)
    own = read_own(OwnRequest(device="cpu", settings={"side": 16}), collection, photos)
    assert len(own.data.labels) == len(collection.names) - 1
    assert own.plan.network.encoder == encoder
    assert own.encoder is not None
    assert own.encoder.state_dict().keys() == build_encoder(encoder, (3, 16, 16), 0).state_dict().keys()
