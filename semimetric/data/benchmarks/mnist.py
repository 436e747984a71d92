"""MNIST (LeCun, Cortes, Burges)."""

from __future__ import annotations

from semimetric.data.benchmarks.official import FileSpec
from semimetric.data.benchmarks.protocols import MNIST_PRESETS
from semimetric.data.readers.idx import idx_variants, load_idx, read_content

MNIST = FileSpec(
    name="mnist",
    summary="handwritten digits",
    train_size=60_000,
    test_size=10_000,
    shape=(1, 28, 28),
    presets=MNIST_PRESETS,
    class_names=tuple("0123456789"),
    checksums={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    variants=idx_variants,
    content=read_content,
    read=load_idx,
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
)
