from semimetric.data.augmentation import Augmentation, augment, check_augmentation, rotate_quarters
from semimetric.data.benchmarks.fetch import fetch_dataset
from semimetric.data.benchmarks.official import Archive, FileSpec
from semimetric.data.benchmarks.photographs import Photographs, PhotoSpec
from semimetric.data.benchmarks.registry import (
    DatasetListing,
    check_dataset,
    dataset_names,
    describe_datasets,
    find_photographs,
    load_dataset,
    photograph_side,
    register_dataset,
)
from semimetric.data.benchmarks.spec import DatasetSpec
from semimetric.data.collection import Collection
from semimetric.data.examples import Dataset, Examples
from semimetric.data.photographs.images import Fit, decode_image
from semimetric.data.photographs.photos import PhotoReader, read_photos
from semimetric.data.preprocess import (
    Identity,
    ImageNet,
    MeanImage,
    Preprocess,
    PreprocessName,
    Standardize,
    Whiten,
    apply_in_chunks,
    build_preprocess,
    restore_preprocess,
)
from semimetric.data.readers.read import read_collection
from semimetric.data.splits import Split, Withheld, partitions, split_examples
from semimetric.data.views import VIEW_HELP, VIEW_KINDS, ViewKind, Views, augmentation_for, kind_of, preset_views

__all__ = [
    "VIEW_HELP",
    "VIEW_KINDS",
    "Archive",
    "Augmentation",
    "Collection",
    "Dataset",
    "DatasetListing",
    "DatasetSpec",
    "Examples",
    "FileSpec",
    "Fit",
    "Identity",
    "ImageNet",
    "MeanImage",
    "PhotoReader",
    "PhotoSpec",
    "Photographs",
    "Preprocess",
    "PreprocessName",
    "Split",
    "Standardize",
    "ViewKind",
    "Views",
    "Whiten",
    "Withheld",
    "apply_in_chunks",
    "augment",
    "augmentation_for",
    "build_preprocess",
    "check_augmentation",
    "check_dataset",
    "dataset_names",
    "decode_image",
    "describe_datasets",
    "fetch_dataset",
    "find_photographs",
    "kind_of",
    "load_dataset",
    "partitions",
    "photograph_side",
    "preset_views",
    "read_collection",
    "read_photos",
    "register_dataset",
    "restore_preprocess",
    "rotate_quarters",
    "split_examples",
]
