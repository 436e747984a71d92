from semimetric.encoders.adapters import wrap
from semimetric.encoders.features import encode, features_of, unit_features
from semimetric.encoders.googlenet import GoogLeNet, load_googlenet
from semimetric.encoders.installed import installed_encoder, weights_name
from semimetric.encoders.regions import RMAC, rmac
from semimetric.encoders.registry import (
    build_encoder,
    encoder_names,
    output_width,
    rebuild_encoder,
    takes_photographs,
)

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
