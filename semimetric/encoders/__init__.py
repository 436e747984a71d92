"""Networks that turn examples into features."""

from semimetric.encoders.adapters import wrap
from semimetric.encoders.encode import encode, features_of, unit_features
from semimetric.encoders.googlenet import GoogLeNet, load_googlenet
from semimetric.encoders.installed import installed_encoder, weights_name
from semimetric.encoders.registry import (
    build_encoder,
    encoder_names,
    output_width,
    rebuild_encoder,
    takes_photographs,
)
from semimetric.encoders.rmac import RMAC, rmac

__all__ = [
    "RMAC",
    "GoogLeNet",
    "build_encoder",
    "encode",
    "encoder_names",
    "features_of",
    "installed_encoder",
    "load_googlenet",
    "output_width",
    "rebuild_encoder",
    "rmac",
    "takes_photographs",
    "unit_features",
    "weights_name",
    "wrap",
]
