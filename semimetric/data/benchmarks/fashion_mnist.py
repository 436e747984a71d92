"""Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017)."""

from __future__ import annotations

from pathlib import Path

from semimetric.data.benchmarks.official import FileSpec
from semimetric.data.benchmarks.protocols import MNIST_PRESETS
from semimetric.data.readers.idx import idx_variants, load_idx, read_content

FASHION_MNIST = FileSpec(
    name="fashion-mnist",
    summary="pictures of clothes",
    train_size=60_000,
    test_size=10_000,
    shape=(1, 28, 28),
    presets=MNIST_PRESETS,
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    checksums={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    variants=idx_variants,
    content=read_content,
    read=load_idx,
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    shared_folders=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
)
