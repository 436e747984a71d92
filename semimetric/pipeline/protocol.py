"""What a benchmark lets a method know and see: labels, scaling, networks and the weights that these start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.files import sha256_of
from semimetric.core.settings import setting
from semimetric.data import Fit, PreprocessName, Withheld
from semimetric.encoders import encoder_names, takes_photographs


@dataclass(frozen=True)
class ProtocolSettings:
    """Which labels are known, and what the network sees."""

    labels_per_class: int = setting(10, "Labelled examples of each class; all other training examples are unlabelled.")
    validation_share: float = setting(
        0.0, "Share of the training data that is withheld; the best model is then chosen on it."
    )
    withheld: Withheld = setting(
        "examples", "What the validation share is of: examples of each class, or whole classes, where new ones come."
    )
    encoder: str = setting("small-cnn", f"Network: {', '.join(encoder_names())}.")
    backbone: str = setting("", "Pretrained network, kept as it is, whose descriptors of the images are learned from.")
    weights: str = setting(
        "", "File with the weights of the pretrained network, backbone or encoder; 'random' for one without any."
    )
    descriptors: str = setting("", "File that keeps the descriptors of the backbone for the next run.")
    side: int = setting(0, "Side in pixels to which photographs are brought; 0 takes the dataset's own, 256.")
    fit: Fit = setting("crop", "How photographs are brought to a square.")
    init: Literal["gaussian", "he"] = setting("gaussian", "Start weights of the paper's networks.")
    preprocess: PreprocessName = setting("standardize", "Scaling of the inputs.")

    def __post_init__(self) -> None:
        check_choice(self.withheld, ("examples", "classes"), "withheld")
        check_choice(self.fit, ("crop", "squash"), "fit")
        if self.backbone and not takes_photographs(self.backbone):
            raise InputError(
                f"backbone {self.backbone!r} is no pretrained network. Use googlenet, googlenet-rmac, timm:NAME, "
                "torchvision:NAME or transformers:ORG/NAME, or train it as the encoder."
            )
        if self.backbone and takes_photographs(self.encoder):
            raise InputError(
                f"encoder {self.encoder!r} sees photographs, and backbone {self.backbone!r} makes descriptors of them. "
                "Leave the backbone out to train the encoder, or set encoder to linear and preprocess to none."
            )
        if self.descriptors and not self.backbone:
            raise InputError(
                "descriptors are those of a backbone, and here a network is trained on the images. Set backbone, for "
                "example to googlenet-rmac, or leave descriptors out."
            )
        if takes_photographs(self.encoder) and self.preprocess != "imagenet":
            raise InputError(
                f"encoder {self.encoder!r} expects preprocess 'imagenet', got {self.preprocess!r}. Set preprocess to "
                "imagenet."
            )

    def weights_file(self) -> Path | None:
        """The weights of the pretrained network, where there is one: a file, or none for a random network."""
        network = self.backbone or self.encoder
        if self.weights == "random" or not takes_photographs(network):
            return None
        if not self.weights:
            raise InputError(
                f"weights are missing: name the file with those of {network!r}, or say 'random' for a network that "
                "has seen nothing."
            )
        return Path(self.weights)

    def weights_digest(self) -> str | None:
        """SHA-256 of that file."""
        weights = self.weights_file()
        return None if weights is None else digest_of_weights(weights)


def digest_of_weights(path: Path) -> str:
    """SHA-256 of a file of weights."""
    if not path.is_file():
        raise InputError(f"weights {str(path)!r} is no file. Name the file that holds the network's weights.")
    return sha256_of(path)
