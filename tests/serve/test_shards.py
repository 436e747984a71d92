"""Runs on shards: fitted, embedded and predicted; one result for each shard, and none twice."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from helpers.command import semimetric
from helpers.shards import write_parquet, write_shards

from semimetric.core.errors import InputError
from semimetric.model.folder import load_run
from semimetric.serve.page.again import check_can_learn
from semimetric.serve.pictures import open_pictures
from semimetric.serve.ray_engine import ShardWorker
from semimetric.serve.shards import Place, ShardWork

RAY = ("embed", "--engine", "ray")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, and a run that was fitted on them."""
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder / "shards")
    options = (
        "--method",
        "triplet",
        "--epochs",
        1,
        "--device",
        "cpu",
        "--encoder",
        "small-cnn",
        "--side",
        16,
        "--json",
    )
    done = semimetric("fit", folder / "shards", *options, "--out", folder / "run").json()
    assert done["found"]["labelled"] == 18
    return folder


def embedded(path: Path) -> tuple[list[str], np.ndarray]:
    table = pyarrow.parquet.read_table(path)
    return table["name"].to_pylist(), np.array(table["embedding"].to_pylist())


def test_a_run_on_shards_continues_embeds_and_predicts(folder: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "new.parquet")
    semimetric("embed", folder / "run", tmp_path / "new.parquet", "--out", tmp_path / "new.npz", "--json").json()
    assert np.load(tmp_path / "new.npz")["names"].tolist() == [f"new.parquet/n{row}" for row in range(9)]
    named = semimetric("predict", folder / "run", folder / "shards" / "shard-0.tar", "--json").json()
    assert named["examples"] == 12


def test_each_shard_has_a_result_and_is_embedded_once(folder: Path, tmp_path: Path) -> None:
    work = ShardWork(folder / "run", str(folder / "shards"), str(tmp_path / "out"))
    loaded = load_run(folder / "run", "cpu")
    versions = work.begin()
    assert [*versions] == ["shard-0.tar", "shard-1.tar"]
    assert work.embed(loaded, "shard-0.tar", versions["shard-0.tar"])["examples"] == 12
    assert [*work.begin()] == ["shard-1.tar"]
    names, values = embedded(tmp_path / "out" / "shard-0.parquet")
    assert names[0] == "shard-0.tar/part/000.png"
    np.testing.assert_allclose(values, loaded.fitted.embeddings[:12].numpy(), atol=1e-5)
    tar = ShardWork(folder / "run", str(folder / "shards"), str(tmp_path / "tar"), "tar")
    tar.embed(loaded, "shard-0.tar", tar.begin()["shard-0.tar"])
    with tarfile.open(tmp_path / "tar" / "shard-0.tar") as archive:
        assert archive.getnames()[:2] == ["000000000.npy", "000000000.json"]
        content = archive.extractfile("000000000.npy").read()
        np.testing.assert_allclose(np.load(io.BytesIO(content)), values[0])


def test_a_shard_that_changed_is_embedded_again(folder: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", 1, 3)
    work = ShardWork(folder / "run", str(tmp_path / "in"), str(tmp_path / "out"))
    worker = ShardWorker(work, "cpu")

    def embed() -> list[int]:
        return [worker({"shard": shard, "version": version})["examples"] for shard, version in work.begin().items()]

    assert (embed(), embed()) == ([3], [])
    write_shards(tmp_path / "in", 1, 4)
    assert (embed(), embed()) == ([4], [])
    assert len(embedded(tmp_path / "out" / "shard-0.parquet")[0]) == 4
    (tmp_path / "out" / ".shard-0.parquet.json").unlink()  # killed before it was written
    assert (embed(), embed()) == ([4], [])


def test_what_goes_wrong_in_a_worker_is_the_sentence_of_its_cause(folder: Path, tmp_path: Path) -> None:
    row = {"shard": "shard-0.tar", "version": ""}
    lost = ShardWork(tmp_path / "no run", str(folder / "shards"), str(tmp_path / "out"))
    assert "no run" in ShardWorker(lost, "cpu")(row)["reason"]
    work = ShardWork(folder / "run", str(folder / "shards"), str(tmp_path / "out"))
    assert ShardWorker(work, "nowhere")(row)["reason"].startswith("device ")
    assert "gone.tar is not there" in ShardWorker(work, "cpu")({"shard": "gone.tar", "version": ""})["reason"]
    assert ShardWorker(work, "cpu")({"shard": "shard-0.tar"})["reason"] == "KeyError: 'version'"  # any other error


def test_results_of_another_run_and_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    work = ShardWork(folder / "run", str(folder / "shards"), str(tmp_path / "out"))
    work.begin()
    with pytest.raises(InputError, match="another run, source or format"):
        ShardWork(folder / "run", work.source, work.out, "tar").begin()
    with pytest.raises(InputError, match="another run, source or format"):
        ShardWork(folder / "run", str(write_shards(tmp_path / "shards")), work.out).begin()
    (tmp_path / "shards" / "._shard-0.tar").write_bytes(b"what a Mac leaves")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".semimetric.json.abcdefgh.tmp").write_bytes(b"of a killed command")
    new = ShardWork(folder / "run", str(tmp_path / "shards"), str(tmp_path / "new"))
    assert [*new.begin()] == ["shard-0.tar", "shard-1.tar"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        ShardWork(folder / "run", work.source, str(tmp_path / "other")).begin()
    with pytest.raises(InputError, match="another folder than that of the shards"):
        ShardWork(folder / "run", work.source, work.source).begin()
    with pytest.raises(InputError, match="has none"):
        ShardWork(folder / "run", str(tmp_path / "other"), work.out).begin()


def test_the_page_says_that_photographs_in_shards_cannot_be_shown(folder: Path) -> None:
    loaded = load_run(folder / "run", "cpu")
    assert "its photographs are in shards" in open_pictures(loaded).missing
    assert "its photographs are in shards" in open_pictures(loaded, source=folder / "shards" / "shard-0.tar").missing
    with pytest.raises(InputError, match="its photographs are in shards"):
        check_can_learn(loaded, None)


def test_storage_beyond_this_machine_is_read_and_written(folder: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    memory.put(str(folder / "shards"), "/shards", recursive=True)
    work = ShardWork(folder / "run", "memory://shards", "memory://out")
    versions = work.begin()
    assert [*versions] == ["shard-0.tar", "shard-1.tar"]
    work.embed(load_run(folder / "run", "cpu"), "shard-1.tar", versions["shard-1.tar"])
    assert [*work.begin()] == ["shard-0.tar"]
    assert Place("memory://out").names() == ["semimetric.json", "shard-1.parquet"]
    memory.put(str(folder / "shards" / "shard-0.tar"), "/shards/shard-1.tar")
    assert [*work.begin()] == ["shard-0.tar", "shard-1.tar"]


def test_options_of_the_other_engine_are_refused(folder: Path, tmp_path: Path) -> None:
    place = (folder / "run", folder / "shards", "--out", tmp_path / "out.npy")
    assert "are for --engine ray" in semimetric("embed", *place, "--workers", 2).sentence()
    assert "are not for --engine ray" in semimetric(*RAY, *place, "--raw").sentence()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray warns of itself
def test_a_cluster_that_does_not_answer_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'semimetric[ray]'")
    place = (folder / "run", folder / "shards", "--out", tmp_path / "out")
    assert "Ray at 127.0.0.1:1 cannot be reached" in semimetric(*RAY, *place, "--address", "127.0.0.1:1").sentence()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray warns of itself
def test_ray_embeds_all_shards_and_continues(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'semimetric[ray]'")
    write_shards(tmp_path / "in", 3)
    write_parquet(tmp_path / "in" / "more.parquet")
    (tmp_path / "in" / "bad.tar").write_bytes(b"no archive")
    command = (*RAY, folder / "run", tmp_path / "in", "--out", tmp_path / "out", "--device", "cpu", "--quiet")
    refused = semimetric(*command, "--workers", 2)
    assert "1 shard could not be embedded, the first bad.tar" in refused.err
    results = [f"shard-{number}.parquet" for number in range(3)]
    assert Place(str(tmp_path / "out")).names() == ["more.parquet", "semimetric.json", *results]
    values = embedded(tmp_path / "out" / "shard-0.parquet")[1]
    np.testing.assert_allclose(values, load_run(folder / "run", "cpu").fitted.embeddings[:12].numpy(), atol=1e-5)
    before = (tmp_path / "out" / "shard-0.parquet").stat().st_mtime_ns
    (tmp_path / "in" / "bad.tar").unlink()
    (tmp_path / "out" / "shard-2.parquet").unlink()
    again = semimetric(*command, "--json").json()
    assert (again["shards"], again["examples"]) == (1, 12)
    assert (tmp_path / "out" / "shard-0.parquet").stat().st_mtime_ns == before
