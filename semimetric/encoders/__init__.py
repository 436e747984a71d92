"""Networks that turn examples into features."""

from semimetric.encoders.encode import encode, features_of, unit_features
from semimetric.encoders.registry import build_encoder, encoder_names, output_width

__all__ = ["build_encoder", "encode", "encoder_names", "features_of", "output_width", "unit_features"]
