"""CIFAR-10 (Krizhevsky, 2009)."""

from __future__ import annotations

from semimetric.data.benchmarks.official import Archive, FileSpec
from semimetric.data.benchmarks.protocols import PAPER, UNLABELLED_VALIDATION
from semimetric.data.readers.cifar import cifar_variants, load_cifar, read_rows

_PAPER = PAPER | {
    "encoder": "paper-cifar10",
    "preprocess": "whiten",
    "labels_per_class": 100,
    "pretrain_epochs": 30,
    "pretrain_lr": 0.003,
    "pretrain_flip": True,
}

CIFAR10 = FileSpec(
    name="cifar10",
    summary="small colour photographs of animals and vehicles",
    train_size=50_000,
    test_size=10_000,
    shape=(3, 32, 32),
    presets={"default": _PAPER | UNLABELLED_VALIDATION, "paper": _PAPER},
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    checksums={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    variants=cifar_variants,
    content=read_rows,
    read=load_cifar,
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archive=Archive(
        name="cifar-10-binary.tar.gz",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        folder="cifar-10-batches-bin",
    ),
)
