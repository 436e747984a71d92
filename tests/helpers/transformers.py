"""A few lines with the interface that transformers has; not transformers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

NAME = "transformers:someone/tiny"
WIDTH = 5


class Pooler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dense(tokens[:, 0]).tanh()


class Tiny(nn.Module):
    """A model of images: tokens, and a pooler where the config says so."""

    main_input_name = "pixel_values"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, stride=16).to(config.dtype)
        self.pooler = Pooler() if config.pooled else None
        self.only = config.only

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        if self.only and pixel_values.shape[-1] != self.only:
            raise ValueError(f"Input image size doesn't match model ({self.only}).")
        tokens = self.patches(pixel_values).flatten(2).mT
        pooled = None if self.pooler is None else self.pooler(tokens)
        return SimpleNamespace(last_hidden_state=tokens, pooler_output=pooled)


class Words(Tiny):
    main_input_name = "input_ids"


class Bars:
    """Whether progress bars are drawn."""

    def __init__(self) -> None:
        self.enabled = True

    def is_progress_bar_enabled(self) -> bool:
        return self.enabled

    def disable_progress_bar(self) -> None:
        self.enabled = False

    def enable_progress_bar(self) -> None:
        self.enabled = True


class Config:
    kinds: ClassVar[dict[str, type[Tiny]]] = {"tiny": Tiny, "words": Words}

    def __init__(self, **values: Any) -> None:
        self.model_type: str = values.get("model_type", "tiny")
        self.pooled: bool = values.get("pooled", False)
        self.only: int = values.get("only", 0)
        self.dtype = torch.bfloat16 if values.get("dtype") == "bfloat16" else torch.float32

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        return cls(**values)


class AutoConfig:
    @staticmethod
    def for_model(model_type: str) -> Config:
        if model_type not in Config.kinds:
            raise ValueError(f"Unrecognized model identifier: {model_type}.")
        return Config(model_type=model_type)


class AutoModel:
    asked: ClassVar[list[dict[str, Any]]] = []

    @staticmethod
    def from_config(config: Config, **given: Any) -> nn.Module:
        assert given == {"trust_remote_code": False}
        return Config.kinds[config.model_type](config)

    @classmethod
    def from_pretrained(cls, folder: str, **given: Any) -> tuple[nn.Module, dict[str, Any]]:
        cls.asked.append(given)
        values = json.loads((Path(folder) / "config.json").read_text())
        model = cls.from_config(AutoConfig.for_model(values["model_type"]).from_dict(values), trust_remote_code=False)
        missing, _ = model.load_state_dict(load_file(Path(folder) / "model.safetensors"), strict=False)
        return model.eval(), {"missing_keys": set(missing)}


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put the stand-in in the place of transformers; returns what models are asked for with."""
    module = ModuleType("transformers")
    utils = SimpleNamespace(logging=Bars())
    vars(module).update(AutoConfig=AutoConfig, AutoModel=AutoModel, __version__="9.1", utils=utils)
    monkeypatch.setitem(sys.modules, "transformers", module)
    monkeypatch.setattr(AutoModel, "asked", [])
    return AutoModel.asked


def write_snapshot(folder: Path, statistics: dict[str, Any] | None = None, **config: Any) -> tuple[Path, nn.Module]:
    """A snapshot folder with random weights: the file of weights, and the model it was made of."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"model_type": "tiny"} | config
    (folder / "config.json").write_text(json.dumps(values))
    if statistics is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(statistics))
    torch.manual_seed(7)
    model = Config.kinds[values["model_type"]](Config.from_dict(values)).eval()
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder / "model.safetensors", model
