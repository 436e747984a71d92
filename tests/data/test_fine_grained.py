"""CUB-200-2011 and Cars-196 in every layout, at the size of four classes."""

import dataclasses
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.photos import (
    BIRDS,
    CARS,
    colour_of,
    photo,
    picture,
    write_annotations,
    write_car_names,
    write_cars,
    write_cars_in_two,
    write_cub,
    write_folders,
)

from semimetric.core.errors import DataError, DataWarning, InputError
from semimetric.data import Dataset, describe_datasets, fetch_dataset, find_photographs, load_dataset
from semimetric.data.benchmarks.cars196 import CARS196
from semimetric.data.benchmarks.cub200 import CUB200
from semimetric.data.benchmarks.registry import DATASETS


@pytest.fixture(autouse=True)
def four_classes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both datasets have four classes with two photographs each, save for tests of real data."""
    if request.node.get_closest_marker("data"):
        return
    monkeypatch.delenv("SEMIMETRIC_DATA", raising=False)
    for known in (CUB200, CARS196):
        small = dataclasses.replace(known, classes=4, train_size=4, test_size=4)
        monkeypatch.setitem(DATASETS._loaded, known.name, small)


def in_halves(folder: Path, names: list[str], **options: str) -> None:
    write_folders(folder / "train", names[:2], **options)
    write_folders(folder / "test", names[2:], first=2, **options)


FOLDERS = [name.replace("/", "-") for name in CARS]

LAYOUTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "cub lists in a folder": ("cub200", lambda folder: write_cub(folder / "CUB_200_2011")),
    "cub lists": ("cub200", write_cub),
    "cub classes": ("cub200", lambda folder: write_folders(folder, BIRDS)),
    "cub classes in images": ("cub200", lambda folder: write_folders(folder / "CUB_200_2011" / "images", BIRDS)),
    "cub halves": ("cub200", lambda folder: in_halves(folder, BIRDS, suffix=".webp")),
    "cub halves, no numbers": ("cub200", lambda folder: in_halves(folder, ["a", "b", "c", "d"], suffix=".PNG")),
    "cub no padding": ("cub200", lambda folder: write_folders(folder, ["1.z", "2_y", "3 x", "4"])),
    "cub other numbers": ("cub200", lambda folder: write_folders(folder, ["9.a", "10.b", "11.c", "100.d"])),
    "cars list": ("cars196", write_cars),
    "cars list in a folder": ("cars196", lambda folder: write_cars(folder / "stanford_cars")),
    "cars lists": ("cars196", write_cars_in_two),
    "cars lists apart": ("cars196", lambda folder: write_cars_in_two(folder, "cars_test_annos_withlabels.mat")),
    "cars classes": ("cars196", lambda folder: write_folders(folder, FOLDERS)),
    "cars halves": ("cars196", lambda folder: in_halves(folder, FOLDERS, suffix=".WebP")),
}


def colours(dataset: Dataset) -> list[tuple[int, ...]]:
    images = torch.cat((dataset.train.inputs, dataset.test.inputs))
    return [tuple(image.mean((1, 2)).round().int().tolist()) for image in images.float()]


def assert_colours(dataset: Dataset, expected: list[tuple[int, ...]]) -> None:
    found = torch.tensor(colours(dataset), dtype=torch.float32)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), atol=3, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inside", [True, False])
def test_every_layout_gives_the_same_dataset(tmp_path: Path, layout: str, inside: bool) -> None:
    name, write = LAYOUTS[layout]
    folder = tmp_path / "data" / name if inside else tmp_path / "data"
    folder.mkdir(parents=True)
    write(folder)
    dataset = load_dataset(name, tmp_path / "data", side=8, workers=2)
    assert dataset.name == name
    assert dataset.train.inputs.shape == dataset.test.inputs.shape == (4, 3, 8, 8)
    assert len(dataset.class_names) == 4
    order = [0, 2, 1, 3] if layout.startswith("cars lists") else [0, 1, 2, 3]  # there, by photograph, then by class
    labels = torch.tensor([0, 0, 1, 1])[order]
    assert torch.equal(dataset.train.labels, labels)
    assert torch.equal(dataset.test.labels, labels + 2)
    rows = [(label, index) for label in range(4) for index in range(2)]
    assert_colours(dataset, [colour_of(*rows[i]) for i in (*order, *(i + 4 for i in order))])
    listing = next(listing for listing in describe_datasets(tmp_path / "data") if listing.name == name)
    assert (listing.found, listing.missing, listing.classes) == (str(folder), (), 4)
    assert (listing.train_size, listing.test_size, listing.shape) == (4, 4, (3, 256, 256))


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("cub lists", BIRDS),
        ("cub halves", BIRDS),
        ("cub halves, no numbers", ["a", "b", "c", "d"]),
        ("cars list", CARS),
        ("cars lists", CARS),
        ("cars halves", FOLDERS),
    ],
)
def test_classes_have_their_names(tmp_path: Path, layout: str, names: list[str]) -> None:
    name, write = LAYOUTS[layout]
    write(tmp_path)
    assert load_dataset(name, tmp_path, side=8).class_names == tuple(names)


def test_names_of_cars_come_from_the_file_that_has_them(tmp_path: Path) -> None:
    write_folders(tmp_path, FOLDERS)
    write_car_names(tmp_path / "cars_meta.mat")
    assert load_dataset("cars196", tmp_path, side=8).class_names == tuple(CARS)
    write_cars_in_two(tmp_path / "other")
    (tmp_path / "other" / "devkit" / "cars_meta.mat").unlink()
    names = load_dataset("cars196", tmp_path / "other", side=8).class_names
    assert names == ("class 1", "class 2", "class 3", "class 4")


def test_names_tell_the_classes_where_one_is_missing(tmp_path: Path) -> None:
    write_folders(tmp_path, FOLDERS)
    write_car_names(tmp_path / "cars_meta.mat")
    shutil.rmtree(tmp_path / FOLDERS[0])
    with pytest.warns(DataWarning, match=rf"2 of 4 training and 4 of 4 test .*1 classes have none: {CARS[0]}\."):
        dataset = load_dataset("cars196", tmp_path, side=8)
    assert dataset.train.labels.tolist() == [1, 1]
    assert dataset.test.labels.tolist() == [2, 2, 3, 3]


def test_what_is_no_photograph_is_left_alone(tmp_path: Path) -> None:
    in_halves(tmp_path, BIRDS)
    bird = tmp_path / "train" / BIRDS[0]
    for name in (".DS_Store", "Thumbs.db", "._0.jpg", ".hidden.jpg", "readme.txt", "noextension"):
        (bird / name).write_bytes(b"nothing to see")
    (bird / "folder.jpg").mkdir()
    (bird / "again").symlink_to(bird)
    (bird / "loop.jpg").symlink_to(bird / "loop.jpg")
    for folder in (".git", "__MACOSX", ".ipynb_checkpoints"):
        photo(tmp_path / "train" / folder / "0.jpg", 0, 0)
    (tmp_path / "train" / "notes.txt").write_text("no class")
    assert len(load_dataset("cub200", tmp_path, side=8).train) == 4


def test_links_to_photographs_and_classes_are_followed(tmp_path: Path) -> None:
    write_folders(tmp_path / "elsewhere", BIRDS)
    (tmp_path / "data").mkdir()
    for name in BIRDS[1:]:
        (tmp_path / "data" / name).symlink_to(tmp_path / "elsewhere" / name)
    (tmp_path / "data" / BIRDS[0]).mkdir()
    for path in (tmp_path / "elsewhere" / BIRDS[0]).iterdir():
        (tmp_path / "data" / BIRDS[0] / path.name).symlink_to(path)
    assert len(load_dataset("cub200", tmp_path / "data", side=8).train) == 4


def test_photographs_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    in_halves(tmp_path, BIRDS)
    names = ["b.jpg", "Z.PNG", "ä.webp", "a b.jpg", "10.jpg"]
    for index, name in enumerate(names, start=2):
        photo(tmp_path / "test" / BIRDS[3] / name, 3, index)
    with pytest.warns(DataWarning, match="4 of 4 training and 9 of 4 test photographs"):
        dataset = load_dataset("cub200", tmp_path, side=8)
    indices = [0, 1, 0, 1, *(names.index(name) + 2 for name in sorted(names))]
    order = sorted(["0.jpg", "1.jpg", *names])
    assert order[:3] == ["0.jpg", "1.jpg", "10.jpg"]
    rows = [(0, 0), (0, 1), (1, 0), (1, 1), *zip((2, 2, *[3] * 7), indices, strict=True)]
    assert_colours(dataset, [colour_of(*row) for row in rows])


def test_missing_and_damaged_photographs_are_counted_and_named(tmp_path: Path) -> None:
    folder = write_cub(tmp_path / "cub200" / "CUB_200_2011", each=9)
    shutil.rmtree(folder / "images" / BIRDS[1])
    damaged = sorted((folder / "images" / BIRDS[2]).iterdir())[:7]
    for path in damaged:
        path.write_bytes(b"")
    (folder / "images" / BIRDS[3] / "Bird no 1.jpg").unlink()
    with pytest.warns(DataWarning) as caught:
        dataset = load_dataset("cub200", tmp_path, side=8)
    assert (len(dataset.train), len(dataset.test)) == (9, 2 + 8)
    assert dataset.class_names == tuple(BIRDS)
    message = str(caught[0].message)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "has 9 of 4 training and 10 of 4 test photographs" in message
    assert f"1 classes have none: {BIRDS[1]}." in message
    assert "7 cannot be decoded: " in message
    assert f"{BIRDS[2]}/Bird no 7.jpg (it is empty), " in message
    assert message.endswith("(it is empty) and 2 more.")


def test_damaged_photographs_that_others_make_up_for_are_reported(tmp_path: Path) -> None:
    in_halves(tmp_path, BIRDS)
    extra = photo(tmp_path / "train" / BIRDS[0] / "extra.jpg", 0, 2)
    extra.write_bytes(b"")
    with pytest.warns(DataWarning, match=r"has 4 of 4 training .*1 cannot be decoded: .*extra\.jpg \(it is empty\)\."):
        load_dataset("cub200", tmp_path, side=8)


def test_missing_classes_that_others_make_up_for_are_reported(tmp_path: Path) -> None:
    in_halves(tmp_path, BIRDS)
    for path in (tmp_path / "test" / BIRDS[3]).iterdir():
        path.rename(tmp_path / "test" / BIRDS[2] / f"more {path.name}")
    with pytest.warns(DataWarning, match=rf"has 4 of 4 training and 4 of 4 test .*1 classes have none: {BIRDS[3]}\."):
        load_dataset("cub200", tmp_path, side=8)


def test_missing_class_folders_are_named(tmp_path: Path) -> None:
    in_halves(tmp_path, BIRDS)
    shutil.rmtree(tmp_path / "train" / BIRDS[1])
    listing = next(listing for listing in describe_datasets(tmp_path) if listing.name == "cub200")
    assert listing.missing == ("class folder 2",)
    with pytest.warns(DataWarning, match=r"2 of 4 training .*1 classes have none: class 2\."):
        dataset = load_dataset("cub200", tmp_path, side=8)
    assert dataset.test.labels.tolist() == [2, 2, 3, 3]
    assert dataset.class_names == (BIRDS[0], "class 2", *BIRDS[2:])


@pytest.mark.parametrize(
    ("train", "test", "where"),
    [
        (["a"], ["c", "d"], "train must hold the classes 1 to 2, but has 1 class folders"),
        (["a", "b"], ["c", "d", "e"], "test must hold the classes 3 to 4, but has 3 class folders"),
        (["1.a", "3.b"], ["2.c", "4.d"], "train must hold the classes 1 to 2, but has 2 class folders"),
        (["1.a", "1.b"], ["3.c", "4.d"], "train must hold the classes 1 to 2, but has 2 class folders"),
    ],
)
def test_classes_that_cannot_be_told_are_refused(tmp_path: Path, train: list[str], test: list[str], where: str) -> None:
    write_folders(tmp_path / "train", train)
    write_folders(tmp_path / "test", test)
    missing = next(listing.missing for listing in describe_datasets(tmp_path) if listing.name == "cub200")
    assert re.match(r"2 class folders in (train|test) \(it has \d\)", missing[0])
    with pytest.raises(DataError, match=rf"{where} .*by a number in front.*Get it from https://"):
        load_dataset("cub200", tmp_path, side=8)


def test_folders_of_another_dataset_are_not_taken(tmp_path: Path) -> None:
    write_folders(tmp_path / "train", ["cat"])
    write_folders(tmp_path / "test", ["cat"])
    assert all(
        listing.found is None for listing in describe_datasets(tmp_path) if listing.name in ("cub200", "cars196")
    )
    with pytest.raises(DataError, match=r"'cub200' was not found in any of: .*Get it from https://.*--data-dir"):
        load_dataset("cub200", tmp_path)
    write_cub(tmp_path / "cub200")
    listings = {listing.name: listing.found for listing in describe_datasets(tmp_path / "cub200")}
    assert listings["cub200"] is not None
    assert listings["cars196"] is None


BOTH = [
    (BIRDS, "cub200"),
    (["a", "b", "c", "d"], "cub200"),
    (["9.a", "10.b", "11.c", "100.d"], "cub200"),
    (FOLDERS, "cars196"),
]


@pytest.mark.parametrize(("names", "name"), BOTH)
def test_a_split_by_photograph_is_put_together_and_split_by_class(tmp_path: Path, names: list[str], name: str) -> None:
    for index, part in enumerate(("train", "test")):
        for label, folder in enumerate(names):
            photo(tmp_path / part / folder / "same name.jpg", label, index)
    listing = next(listing for listing in describe_datasets(tmp_path) if listing.name == name)
    assert (listing.found, listing.missing) == (str(tmp_path), ())
    dataset = load_dataset(name, tmp_path, side=8)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.test.labels.tolist() == [2, 2, 3, 3]
    assert_colours(dataset, [colour_of(label, index) for label in range(4) for index in range(2)])
    assert dataset.class_names == tuple(names)


def test_a_split_by_photograph_may_lack_a_class_on_one_side(tmp_path: Path) -> None:
    write_folders(tmp_path / "train", BIRDS[:3], each=2)
    photo(tmp_path / "test" / BIRDS[1] / "2.jpg", 1, 2)
    write_folders(tmp_path / "test", BIRDS[3:], first=3)
    with pytest.warns(DataWarning, match="has 5 of 4 training and 4 of 4 test"):
        dataset = load_dataset("cub200", tmp_path, side=8)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (
            ["cats", "dogs", "mice", "zebras"],
            r"4 folders, from 'cats' to 'zebras', told by their order alone; check that they are the dataset's\.",
        ),
        (
            [*BIRDS, "005.Crow", "extras"],
            rf"4 folders, from '{BIRDS[0]}' to '{BIRDS[3]}', told by the number in front of their names; left out are "
            r"extras, 005\.Crow\.",
        ),
    ],
)
def test_folders_of_other_counts_are_described(tmp_path: Path, names: list[str], found: str) -> None:
    write_folders(tmp_path, names, each=3)
    with pytest.warns(DataWarning, match=rf"has 6 of 4 training and 6 of 4 test .* Its classes are {found}$"):
        load_dataset("cub200", tmp_path, side=8)


def test_what_is_left_out_is_kept_with_its_reason(tmp_path: Path) -> None:
    folder = write_cub(tmp_path / "cub200" / "CUB_200_2011")
    (folder / "images" / BIRDS[0] / "Bird no 1.jpg").unlink()
    (folder / "images" / BIRDS[3] / "Bird no 2.jpg").write_bytes(b"")
    with pytest.warns(DataWarning, match="3 of 4 training and 3 of 4 test"):
        dataset = load_dataset("cub200", tmp_path, side=8)
    assert dataset.skipped == {
        f"CUB_200_2011/images/{BIRDS[0]}/Bird no 1.jpg": "there is no such file",
        f"CUB_200_2011/images/{BIRDS[3]}/Bird no 2.jpg": "it is empty",
    }
    assert load_dataset("digits").skipped == {}


def test_progress_counts_training_and_test_photographs(tmp_path: Path) -> None:
    in_halves(tmp_path, BIRDS)
    seen: list[tuple[int, int]] = []
    load_dataset("cub200", tmp_path, side=8, progress=lambda *call: seen.append(call))
    assert seen == [(done, 8) for done in range(1, 9)]


def test_photographs_are_listed_without_decoding_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_halves(tmp_path, BIRDS)
    monkeypatch.setattr("semimetric.data.photographs.images.open_image", lambda *_: pytest.fail("opened"))
    found = find_photographs("cub200", tmp_path)
    assert found is not None
    assert {name: part.labels for name, part in found.parts().items()} == {
        "training": (0, 0, 1, 1),
        "test": (2, 2, 3, 3),
    }
    assert found.name_of(found.album.paths[0]) == f"train/{BIRDS[0]}/0.jpg"
    assert find_photographs("digits") is None


def test_an_empty_half_is_refused(tmp_path: Path) -> None:
    folder = write_cub(tmp_path)
    for name in BIRDS[2:]:
        shutil.rmtree(folder / "images" / name)
    with pytest.raises(DataError, match=r"has no test photographs of cub200\. Get it"):
        load_dataset("cub200", tmp_path, side=8)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("image_class_labels.txt", None, r"lacks image_class_labels\.txt\. Get it from"),
        ("images.txt", "1 a.jpg\nnonsense\n", r"images\.txt, line 2, must be a number and a text, but is 'nonsense'"),
        ("image_class_labels.txt", "1 1\n", r"no class for 7 images of images\.txt, the first is 2\."),
        ("image_class_labels.txt", "".join(f"{i} 5\n" for i in range(1, 9)), "class 5, which is not from 1 to 4"),
        ("classes.txt", "1 a\n2 b\n", "must number classes from 1 to 4, but has 2"),
        ("classes.txt", b"\xff\xfe", r"classes\.txt cannot be read"),
    ],
)
def test_damaged_lists_are_named(tmp_path: Path, name: str, content: str | bytes | None, message: str) -> None:
    path = write_cub(tmp_path) / name
    (tmp_path / "images").rename(tmp_path / "other")  # class folders by themselves would do
    (tmp_path / "images").mkdir()
    path.unlink()
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message):
        load_dataset("cub200", tmp_path, side=8)


def test_damaged_car_lists_are_named(tmp_path: Path) -> None:
    path = write_cars(tmp_path) / "cars_annos.mat"
    path.write_bytes(b"no such thing")
    with pytest.raises(DataError, match=r"cars_annos\.mat cannot be read as a MATLAB file"):
        load_dataset("cars196", tmp_path, side=8)
    write_annotations(path, "fname", ["a.jpg"], [1])
    with pytest.raises(DataError, match="must have 'annotations' with the fields 'relative_im_path' and 'class'"):
        load_dataset("cars196", tmp_path, side=8)
    write_annotations(path, "relative_im_path", ["a.jpg"], ["sedan"])
    with pytest.raises(DataError, match="whose class is not a number"):
        load_dataset("cars196", tmp_path, side=8)
    shutil.rmtree(tmp_path / "car_ims")
    with pytest.raises(DataError, match="lacks car_ims"):
        load_dataset("cars196", tmp_path, side=8)


def test_the_test_list_without_labels_is_not_enough(tmp_path: Path) -> None:
    write_cars_in_two(tmp_path, "devkit/cars_test_annos.mat")
    listing = next(listing for listing in describe_datasets(tmp_path) if listing.name == "cars196")
    assert listing.missing == ("devkit/cars_test_annos_withlabels.mat",)
    with pytest.raises(DataError, match=r"lacks devkit/cars_test_annos_withlabels\.mat"):
        load_dataset("cars196", tmp_path, side=8)


def test_a_single_annotation_is_a_list_of_one(tmp_path: Path) -> None:
    write_annotations(tmp_path / "cars_annos.mat", "relative_im_path", ["car_ims/1.jpg"], [3])
    photo(tmp_path / "car_ims" / "1.jpg", 2, 0)
    album = dataclasses.replace(CARS196, classes=4).album(tmp_path)
    assert (album.paths, album.labels) == ((tmp_path / "car_ims" / "1.jpg",), (2,))


def test_side_and_fit_are_for_photographs(tmp_path: Path) -> None:
    in_halves(tmp_path, BIRDS)
    assert load_dataset("cub200", tmp_path).train.inputs.shape == (4, 3, 256, 256)
    picture(48, 32).save(tmp_path / "train" / BIRDS[0] / "0.jpg")
    cropped, squashed = (load_dataset("cub200", tmp_path, side=8, fit=fit).train.inputs for fit in ("crop", "squash"))
    assert squashed.shape == (4, 3, 8, 8)
    assert squashed[0, 0, 4, 0] < cropped[0, 0, 4, 0] - 20  # the left margin, where there is no red
    assert torch.equal(squashed[1:], cropped[1:])
    with pytest.raises(InputError, match=r"side=64 is for datasets of photographs; the images of 'mnist' are 1x28x28"):
        load_dataset("mnist", tmp_path, side=64)
    with pytest.raises(InputError, match=r"fit='squash' is for datasets of photographs; the images of 'digits'"):
        load_dataset("digits", fit="squash")
    with pytest.raises(InputError, match="side must be at least 1 pixel, but is 0"):
        load_dataset("cub200", tmp_path / "nowhere", side=0)
    with pytest.raises(InputError, match="fit must be one of crop, squash"):
        load_dataset("cars196", tmp_path / "nowhere", fit="pad")


@pytest.mark.parametrize("name", ["cub200", "cars196"])
def test_fetching_tells_where_to_get_it_and_where_to_put_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        InputError, match=r"cannot be fetched for you, since its licence .*Get it from https://"
    ) as caught:
        fetch_dataset(name, tmp_path / "data")
    assert f"put it into {tmp_path / 'data' / name}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_class_folder_is_named(tmp_path: Path) -> None:
    in_halves(tmp_path, BIRDS)
    (tmp_path / "train" / BIRDS[0]).chmod(0)
    if os.access(tmp_path / "train" / BIRDS[0], os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset("cub200", tmp_path, side=8)


@pytest.mark.data
def test_the_real_birds_are_counted_as_published() -> None:
    found = next(listing.found for listing in describe_datasets() if listing.name == "cub200")
    if found is None:
        pytest.skip("needs cub200: set SEMIMETRIC_DATA to the folder that holds it")
    dataset = load_dataset("cub200", side=32)  # a DataWarning would be an error
    assert (len(dataset.train), len(dataset.test)) == (5864, 5924)
    assert torch.equal(dataset.train.labels.unique(), torch.arange(100))
    assert torch.equal(dataset.test.labels.unique(), torch.arange(100, 200))
    assert len(set(dataset.class_names)) == 200


def test_a_folder_without_a_number_among_numbered_ones_is_no_class(tmp_path: Path) -> None:
    """It must not shift the others, which would move a training class to the test."""
    write_folders(tmp_path, BIRDS)
    shutil.rmtree(tmp_path / BIRDS[2])
    (tmp_path / "attributes").mkdir()
    with pytest.warns(DataWarning, match="class"):
        dataset = load_dataset("cub200", tmp_path, side=8)
    assert dataset.train.labels.unique().tolist() == [0, 1]
    assert dataset.test.labels.unique().tolist() == [3]
