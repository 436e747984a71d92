"""Networks that turn examples into features."""

from semimetric.encoders.encode import encode, unit_features
from semimetric.encoders.registry import build_encoder, encoder_names, output_width

__all__ = ["build_encoder", "encode", "encoder_names", "output_width", "unit_features"]
