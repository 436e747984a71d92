from semimetric.encoders.features import encode as encode, features_of as features_of, output_width as output_width, unit_features as unit_features
from semimetric.encoders.efficientnet_lite import EfficientNetLite as EfficientNetLite
from semimetric.encoders.googlenet import GoogLeNet as GoogLeNet, load_googlenet as load_googlenet
from semimetric.encoders.headless import wrap as wrap
from semimetric.encoders.installed import installed_encoder as installed_encoder
from semimetric.encoders.mirror import Mirrored as Mirrored, mirrored as mirrored
from semimetric.encoders.packages import packaged_weights as packaged_weights
from semimetric.encoders.regions import GeneralizedMean as GeneralizedMean, RMAC as RMAC, rmac as rmac
from semimetric.encoders.registry import build_encoder as build_encoder, encoder_names as encoder_names, rebuild_encoder as rebuild_encoder, register_encoder as register_encoder, takes_photographs as takes_photographs, weights_name as weights_name
from semimetric.encoders.spec import EncoderSpec as EncoderSpec, WeightsPackage as WeightsPackage
