from semimetric.encoders.features import encode, features_of, output_width, unit_features
from semimetric.encoders.googlenet import GoogLeNet, load_googlenet
from semimetric.encoders.headless import wrap
from semimetric.encoders.installed import installed_encoder
from semimetric.encoders.regions import RMAC, rmac
from semimetric.encoders.registry import (
    build_encoder,
    encoder_names,
    rebuild_encoder,
    register_encoder,
    takes_photographs,
    weights_name,
)
from semimetric.encoders.spec import EncoderSpec

__all__ = [
    "RMAC",
    "EncoderSpec",
    "GoogLeNet",
    "build_encoder",
    "encode",
    "encoder_names",
    "features_of",
    "installed_encoder",
    "load_googlenet",
    "output_width",
    "rebuild_encoder",
    "register_encoder",
    "rmac",
    "takes_photographs",
    "unit_features",
    "weights_name",
    "wrap",
]
