"""What a stranger ships: pictures that are programs, forged runs, pipes and devices, and what fills the memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.command import semimetric
from helpers.own_photos import write_folder, write_photo
from helpers.sealed import reseal
from PIL import Image

import semimetric as semimetric_package
from semimetric.cli.entry import out_of_memory
from semimetric.core.errors import DataError, SemimetricError
from semimetric.core.files import read_tensors, sha256_of, write_tensors
from semimetric.core.manifest import Contents, Manifest
from semimetric.data.photographs.images import IMAGE_FORMATS, decode_image
from semimetric.data.readers.shards import read_shards

pytestmark = pytest.mark.filterwarnings("ignore:.*")
FIT = ["--epochs", 1, "--passes", 1, "--threads", 1]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n8 8 scale showpage\n%%EOF\n"


@pytest.fixture
def home(home: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(home, tmp_path / "home"))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs with a run on them."""
    place = tmp_path_factory.mktemp("photographs")
    write_folder(place / "photos", 4, 6)
    encoder = ["--encoder", "small-cnn", "--side", 16]
    assert semimetric("fit", place / "photos", *FIT, *encoder, "-o", place / "run").code == 0
    return place


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a program called gs writes when it is run; it is the first on the path, as pillow looks for it."""
    program, told = tmp_path / "bin" / "gs", tmp_path / "called"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # pillow looks for it once in a process
    assert subprocess.run(["gs", "--version"], check=True).returncode == 0
    assert told.read_text() == "--version\n"
    told.unlink()
    return told


def test_postscript_under_the_name_of_a_photograph_is_not_executed(
    photographs: Path, tmp_path: Path, called: Path
) -> None:
    (tmp_path / "a.eps").write_bytes(EPS)
    with Image.open(tmp_path / "a.eps") as image, pytest.raises(OSError, match=r"."):
        image.load()
    assert called.exists()  # so pillow would run it
    called.unlink()
    photos = write_folder(tmp_path / "photos", 4, 6)
    for name in ("red/bad.jpg", "red/bad.png", "unlabelled/bad.tif", "bad.jpeg"):
        (photos / name).write_bytes(EPS)
    done = semimetric("fit", photos, *FIT, "--encoder", "small-cnn", "--side", 16, "-o", tmp_path / "run")
    assert done.code == 0
    assert "4 of these cannot be decoded" in done.out
    assert "bad.jpg" in semimetric("search", photographs / "run", photos / "red" / "bad.jpg").sentence()
    with pytest.raises(DataError, match=r"bad\.jpg"):
        decode_image(photos / "red" / "bad.jpg", 8)
    assert not called.exists()


def test_an_upload_of_postscript_is_not_executed(photographs: Path, tmp_path: Path, called: Path) -> None:
    from semimetric.serve.page.desk import Desk

    desk = Desk(Path(shutil.copytree(photographs / "run", tmp_path / "run")))
    with pytest.raises(SemimetricError):
        desk.similar_to_picture(EPS, 3)
    assert not called.exists()


def test_shards_with_postscript_are_read_without_it(photographs: Path, tmp_path: Path, called: Path) -> None:
    write_photo(tmp_path / "a.jpg", (200, 0, 0), 0)
    (tmp_path / "b.jpg").write_bytes(EPS)
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        for name in ("a.jpg", "b.jpg"):
            archive.add(tmp_path / name, name)
    assert len(read_shards([tmp_path / "shard.tar"])) == 2
    done = semimetric("embed", photographs / "run", tmp_path / "shard.tar", "-o", tmp_path / "out.csv")
    assert done.code == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 2
    assert not called.exists()


def test_one_place_opens_pictures() -> None:
    package = Path(semimetric_package.__file__).parent
    places = [path for path in package.rglob("*.py") if "Image.open(" in path.read_text()]
    assert [str(path.relative_to(package)) for path in places] == ["data/photographs/images.py"]
    assert places[0].read_text().count("Image.open(") == places[0].read_text().count("formats=") == 1


@pytest.mark.parametrize("kind", ["ICNS", "PCX", "TGA", "SGI", "DDS", "IM", "ICO"])
def test_other_formats_are_not_parsed_under_the_name_of_a_photograph(tmp_path: Path, kind: str) -> None:
    Image.new("RGB", (32, 32), "red").save(tmp_path / "a.bin", format=kind)
    with Image.open(tmp_path / "a.bin") as image:
        assert image.format == kind  # pillow alone would
    (tmp_path / "a.bin").rename(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"a\.jpg cannot be decoded: it is not an image"):
        decode_image(tmp_path / "a.jpg", 8)


@pytest.mark.parametrize("suffix", sorted({*IMAGE_FORMATS} - {".heic", ".heif"}))
def test_listed_formats_are_read_under_any_listed_name(tmp_path: Path, suffix: str) -> None:
    for name in (f"a{suffix}", "a.jpg", "b.png"):
        Image.new("RGB", (32, 32), (255, 255, 255)).save(tmp_path / name, format=IMAGE_FORMATS[suffix])
        assert decode_image(tmp_path / name, 8).float().mean() > 250


def test_a_photograph_of_two_cameras_is_read(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (32, 32), colour) for colour in ("white", "black"))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[second])
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "MPO"
    assert decode_image(tmp_path / "a.jpg", 8).float().mean() > 250


def test_no_other_index_reaches_faiss(home: Path, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    from semimetric.search import faiss_index

    content = faiss.serialize_index(faiss.IndexLSH(13, 16)).tobytes()
    seal = faiss_index._MARK + hashlib.sha256(content).digest()
    (tmp_path / "x.faiss").write_bytes(content + seal)
    said = semimetric("search", home / "run", home / "new.npy", "--index", tmp_path / "x.faiss").sentence()
    assert "x.faiss is not an index" in said


def test_no_figure_is_replaced_unasked(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for command, runs, page in (
        ("report", [home / "net"], "report.html"),
        ("compare", [home / "run", home / "net"], "compare.html"),
    ):
        out = tmp_path / command
        (out / "figures").mkdir(parents=True)
        mine = [out / "figures" / "curves.svg", out / "figures" / "mine.png"]
        for path in mine:
            path.write_text("mine")
        assert "curves.svg" in semimetric(command, *runs, "-o", out).sentence()
        assert sorted(path.name for path in out.rglob("*")) == ["curves.svg", "figures", "mine.png"]
        assert {path.read_text() for path in mine} == {"mine"}
        done = semimetric(command, *runs, "-o", out, "--replace")
        assert done.code == 0, done.err
        assert (out / page).exists()
        assert mine[0].read_text() != "mine"
        assert mine[1].read_text() == "mine"


def test_every_figure_that_may_be_written_is_checked_first(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from semimetric.cli.report import FIGURES

    for command, page, runs in (
        ("report", "report.html", [home / "net", home / "wine.npz"]),
        ("compare", "compare.html", [home / "net", home / "run"]),
    ):
        out = tmp_path / command
        written = semimetric(command, *runs, "-o", out, "--json").json()["figures"]
        assert {Path(path).stem for path in written} <= {*FIGURES[page]}
        for path in map(Path, written):
            shutil.rmtree(out)
            path.parent.mkdir(parents=True)
            path.write_text("mine")
            assert path.name in semimetric(command, *runs, "-o", out).sentence()
            assert path.read_text() == "mine"
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "figures").write_text("mine")
    assert "figures" in semimetric("report", home / "net", "-o", tmp_path / "file").sentence()
    assert not (tmp_path / "file" / "report.html").exists()


def changed(run: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change a JSON file of a run and seal it again, as a stranger can."""
    value = json.loads((run / name).read_text())
    change(value)
    (run / name).write_text(json.dumps(value))
    reseal(run)


ODD_TEXTS = [["a"], {"a": 1}, None, 7, "\ud800"]
FORGED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{
        f"{field} {odd!r}": ("examples.json", lambda value, field=field, odd=odd: value[field].__setitem__(0, odd))
        for field in ("names", "classes")
        for odd in ODD_TEXTS
        if (field, odd) != ("classes", 7)
    },
    "columns": ("examples.json", lambda value: value.update(columns=[{}] * 13)),
    "suggested": ("examples.json", lambda value: value.update(suggested=["a"])),
    **{f"guards {odd!r}": ("result.json", lambda value, odd=odd: value.update(guards=[odd])) for odd in ODD_TEXTS},
    "guards": ("result.json", lambda value: value.update(guards=3)),
    "seconds": ("result.json", lambda value: value.update(seconds="long")),
    "trust": ("result.json", lambda value: value.update(trust={"sentence": "x"})),
    "method": ("result.json", lambda value: value.update(method=["\ud800"])),
    **{
        f"no {field}": ("config.json", lambda value, field=field: value.pop(field))
        for field in ("format", "kind", "version", "versions", "plan", "data", "undecoded")
    },
    **{f"format {odd!r}": ("config.json", lambda value, odd=odd: value.update(format=odd)) for odd in (1, 2, 3, 5)},
    "versions": ("config.json", lambda value: value.update(versions=[1])),
    "plan": ("config.json", lambda value: value.update(plan="x")),
    "no digests": ("examples.json", lambda value: value.pop("digests")),
    "no mirror": ("model.json", lambda value: value.pop("mirror")),
    "shape": ("model.json", lambda value: value.update(shape=["x"])),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_value_is_refused_by_every_command(home: Path, tmp_path: Path, forgery: str) -> None:
    run, (name, change) = home / "net", FORGED[forgery]
    changed(run, name, change)
    commands: list[tuple[object, ...]] = [
        ("search", run, home / "new.npy", "-k", 2),
        ("evaluate", run, home / "wine.npz"),
        ("evaluate", run),
        ("report", run, "-o", tmp_path / "report"),
        ("add", run, home / "more.npy"),
        ("info", run),
    ]
    for words in commands:
        assert str(run) in semimetric(*words).sentence(), words
    assert not (tmp_path / "report").exists()


def test_a_forged_dataset_means_nothing(home: Path) -> None:
    run = home / "net"
    before = semimetric("evaluate", run, home / "wine.npz", "--json").json()["scores"]
    changed(run, "config.json", lambda value: value.update(dataset="digits"))
    assert semimetric("evaluate", run, home / "wine.npz", "--json").json()["scores"] == before
    assert f"{run} is of data of your own" in semimetric("evaluate", run).sentence()


@pytest.mark.parametrize("claimed", [1, 2, 4, None])
def test_no_run_escapes_the_manifest(home: Path, tmp_path: Path, claimed: int | None) -> None:
    run = home / "net"
    changed(run, "config.json", lambda value: value.update(format=claimed))
    (run / "manifest.json").unlink()
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for words in (
        ("search", run, home / "new.npy"),
        ("evaluate", run),
        ("report", run, "-o", tmp_path / "report"),
        ("info", run),
        ("verify", run),
        ("add", run, home / "more.npy"),
        ("fit", home / "wine.npz", "--encoder", "linear", *FIT, "-o", run, "--resume"),
        ("fit", home / "wine.npz", *FIT, "--from", run, "-o", tmp_path / "new"),
    ):
        assert f"{run} is damaged: manifest.json is missing" in semimetric(*words).sentence()
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_forged_label_of_no_class_is_refused(home: Path, tmp_path: Path) -> None:
    run = home / "net"
    tensors, state = read_tensors(run / "examples.safetensors")
    tensors["labels"][0] = 1 << 55
    write_tensors(run / "examples.safetensors", tensors, state)
    reseal(run)
    assert "examples.safetensors" in semimetric("labels", run, "-o", tmp_path / "l.csv").sentence()


def test_forged_examples_that_were_added_are_refused(home: Path) -> None:
    run = home / "net"
    assert semimetric("add", run, home / "more.npy").code == 0
    tensors, state = read_tensors(run / "added.safetensors")
    for field, odd in (("names", ["a"]), ("names", "\ud800"), ("classes", {}), ("trained", "x")):
        forged = state | {field: odd if field == "trained" else [odd, *state[field][1:]]}
        write_tensors(run / "added.safetensors", tensors, forged)
        reseal(run)
        for words in (("search", run, home / "new.npy"), ("info", run)):
            assert "added.safetensors" in semimetric(*words).sentence()


def test_a_forged_log_is_refused(home: Path, tmp_path: Path) -> None:
    run = home / "net"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    for odd in ([], "\ud800", {}):
        (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps({"epoch": odd, "x": 1.0})]) + "\n")
        reseal(run)
        assert "metrics.jsonl" in semimetric("report", run, "-o", tmp_path / "report").sentence()


def test_bytes_of_a_file_name_are_shown(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    changed(home / "net", "examples.json", lambda value: value["names"].__setitem__(0, "\udcff"))
    changed(home / "net", "examples.json", lambda value: value.update(source="/data/\udcff"))
    done = semimetric("report", home / "net", "-o", tmp_path / "report", "--sample", 100)
    assert done.code == 0, done.err
    assert '"\\\\xff"' in (tmp_path / "report" / "report.html").read_text()


def test_verify_wants_the_entries_of_a_finished_run(home: Path) -> None:
    run = home / "net"
    manifest = Manifest(run)
    assert semimetric("verify", run).code == 0
    for name in ("examples.json", "model.safetensors", "added.safetensors", "metrics.jsonl"):
        whole = manifest.contents()
        if name not in whole.files:
            continue
        left = {one: entry for one, entry in whole.files.items() if one != name}
        manifest._write(Contents(left, {name: whole.files[name]}))
        told = semimetric("verify", run)
        assert told.code == 1
        assert f"{name}  interrupted" in told.out
        manifest._write(Contents(left, {}))
        assert semimetric("verify", run).code == 1
        (run / name).rename(home / "aside")
        assert semimetric("verify", run).code == (0 if name == "metrics.jsonl" else 1)
        (home / "aside").rename(run / name)
        manifest._write(whole)
    assert semimetric("verify", run).code == 0


def test_what_an_interrupted_command_wrote_is_settled_by_the_same_command(home: Path) -> None:
    run = home / "net"
    manifest = Manifest(run)
    again = ("fit", home / "wine.npz", "--encoder", "linear", *FIT, "-o", run, "--resume")
    whole = manifest.contents()
    left = {name: entry for name, entry in whole.files.items() if name != "examples.json"}
    manifest._write(Contents(left, {"examples.json": whole.files["examples.json"]}))
    assert semimetric("verify", run).code == 1
    assert semimetric(*again).code == 0
    assert semimetric("verify", run).code == 0


@pytest.mark.parametrize("resume", [(), ("--resume",)])
@pytest.mark.parametrize("content", ["mine", "{}", '{"body": {"files": {}, "pending": {}}, "sha256": ""}'])
def test_a_manifest_of_others_stays(home: Path, tmp_path: Path, content: str, resume: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text(content)
    for words in (
        ("fit", home / "wine.npz", *FIT, *resume, "-o", out),
        *([] if resume else [("tune", home / "wine.npz", "--trials", 1, "--epochs", 1, "-o", out)]),
    ):
        assert str(out) in semimetric(*words).sentence()
        assert {path.name: path.read_text() for path in out.iterdir()} == {"manifest.json": content}


def test_what_a_killed_process_left_is_continued(home: Path, tmp_path: Path) -> None:
    from semimetric.core.manifest import Entry

    out = tmp_path / "out"
    out.mkdir()
    Manifest(out)._write(Contents({}, {"config.json": Entry(1, "x")}))
    assert semimetric("fit", home / "wine.npz", *FIT, "-o", out, "--resume").code == 0
    assert semimetric("verify", out).code == 0


def test_no_run_is_made_inside_of_a_run(home: Path) -> None:
    before = sorted(home.rglob("*"))
    for words in (
        ("fit", home / "wine.npz", *FIT, "-o", home / "net" / "sub"),
        ("fit", home / "wine.npz", *FIT, "--resume", "-o", home / "net" / "sub" / "deep"),
        ("tune", home / "wine.npz", "--trials", 1, "-o", home / "net" / "sub"),
    ):
        assert str(home / "net") in semimetric(*words).sentence()
        assert sorted(home.rglob("*")) == before


def test_settings_that_are_nested_deeply_are_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("a = " + "[" * 3000 + "]" * 3000)
    said = semimetric("fit", home / "wine.npz", "--config", tmp_path / "deep.toml", "-o", tmp_path / "run").sentence()
    assert "deep.toml" in said


BOUNDED = """
import json, resource, signal, sys
import semimetric.pipeline.own, semimetric.search.index
from helpers.command import semimetric
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
for words in json.loads(sys.argv[1]):
    signal.alarm(30)
    print(json.dumps(semimetric(*words).sentence()))
"""


def child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that imports what the tests do."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_pipes_and_devices_are_refused(home: Path, photographs: Path, tmp_path: Path) -> None:
    """In a process of its own with a bound on its time and memory: before, it waited, or read a device without end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in ("pipe.toml", "pipe.csv", "pipe.npy", "pipe.faiss", "pipe.safetensors", "pipe.jpg"):
        (tmp_path / name).symlink_to(pipe)
    out, backbone = tmp_path / "out", ["--quiet", "--backbone", "googlenet", "--weights", "random"]
    lines = [
        ["fit", home / "wine.npz", "--config", tmp_path / "pipe.toml", "-o", out],
        ["fit", home / "wine.npz", "--config", "/dev/zero", "-o", out],
        ["fit", photographs / "photos", "--labels", tmp_path / "pipe.csv", "-o", out],
        ["fit", photographs / "photos", "--labels", "/dev/zero", "-o", out],
        ["fit", tmp_path / "pipe.csv", "-o", out],
        ["search", photographs / "run", tmp_path / "pipe.jpg"],
        ["search", home / "run", home / "new.npy", "--index", tmp_path / "pipe.npy"],
        ["search", home / "run", home / "new.npy", "--index", tmp_path / "pipe.faiss"],
        ["fit", "--dataset", "digits", *backbone, "--descriptors", tmp_path / "pipe.safetensors", "-o", out],
    ]
    told = json.dumps([[str(word) for word in line] for line in lines])
    done = child(BOUNDED, told)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(lines), done.stderr
    for line, sentence in zip(lines, said, strict=True):
        assert any(str(word) in sentence for word in line if "pipe" in str(word) or "zero" in str(word)), sentence
    assert not out.exists()
    with pytest.raises(OSError, match="not a plain file"):
        sha256_of(pipe)  # as caches and label books do
    assert stat.S_ISFIFO(pipe.stat().st_mode)


LIMITED = """
import resource, sys
from semimetric.cli import entry
import semimetric.cli.main, semimetric.cli.fit, semimetric.pipeline.own, semimetric.data.readers.tables
import sklearn.cluster, pyarrow.parquet
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20),) * 2)
sys.argv = ["semimetric", *sys.argv[2:]]
entry.main()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("megabytes", [200, 1800])
def test_a_small_table_that_fills_the_memory_ends_in_a_sentence(tmp_path: Path, megabytes: int) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = pyarrow.repeat(1.0, 20_000_000)
    parquet.write_table(pyarrow.table({"x": values, "label": values}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 1 << 20
    words = [str(megabytes), "fit", str(tmp_path / "bomb.parquet"), "-o", str(tmp_path / "run")]
    done = child(LIMITED, *words)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: memory ran out")
    assert not (tmp_path / "run").exists()


def test_an_error_that_speaks_of_memory_is_not_out_of_memory() -> None:
    for error in (KeyError("memory"), RuntimeError("unsupported memory format option Preserve")):
        assert out_of_memory(error) is None
    for text in ("DefaultCPUAllocator: can't allocate memory: you tried", "CUDA out of memory. Tried"):
        assert "memory ran out" in (out_of_memory(RuntimeError(text)) or "")


def test_an_error_without_words_ends_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("semimetric.cli.fit.check_data", full)
    assert "memory ran out" in semimetric("fit", tmp_path, "-o", tmp_path / "run").sentence()
