from semimetric.data.augmentation import Augmentation as Augmentation, augment as augment, check_augmentation as check_augmentation, rotate_quarters as rotate_quarters
from semimetric.data.benchmarks.fetch import fetch_dataset as fetch_dataset
from semimetric.data.benchmarks.official import Archive as Archive, FileSpec as FileSpec
from semimetric.data.benchmarks.photographs import PhotoSpec as PhotoSpec, Photographs as Photographs
from semimetric.data.benchmarks.registry import DatasetListing as DatasetListing, check_dataset as check_dataset, dataset_names as dataset_names, describe_datasets as describe_datasets, find_photographs as find_photographs, load_dataset as load_dataset, photograph_side as photograph_side, register_dataset as register_dataset
from semimetric.data.benchmarks.spec import DatasetSpec as DatasetSpec
from semimetric.data.collection import Collection as Collection
from semimetric.data.examples import Dataset as Dataset, Examples as Examples
from semimetric.data.photographs.images import Fit as Fit, decode_image as decode_image
from semimetric.data.photographs.photos import PhotoReader as PhotoReader, read_photos as read_photos
from semimetric.data.preprocess import Identity as Identity, ImageNet as ImageNet, MeanImage as MeanImage, Preprocess as Preprocess, PreprocessName as PreprocessName, Standardize as Standardize, Whiten as Whiten, apply_in_chunks as apply_in_chunks, build_preprocess as build_preprocess, restore_preprocess as restore_preprocess
from semimetric.data.randaugment import RandAugment as RandAugment, rand_augment as rand_augment
from semimetric.data.readers.read import read_collection as read_collection
from semimetric.data.splits import Split as Split, Withheld as Withheld, partitions as partitions, split_examples as split_examples
from semimetric.data.views import VIEW_HELP as VIEW_HELP, VIEW_KINDS as VIEW_KINDS, ViewKind as ViewKind, Views as Views, augmentation_for as augmentation_for, kind_of as kind_of, preset_views as preset_views
