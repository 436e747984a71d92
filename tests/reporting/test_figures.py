from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from semimetric.core.errors import InputError
from semimetric.reporting.figures import (
    Curve,
    Panel,
    RetrievalRow,
    Scaling,
    Shown,
    angle_figure,
    curves_figure,
    maps_figure,
    retrieval_figure,
    scaling_figure,
    write_figure,
)

matplotlib = pytest.importorskip("matplotlib", reason="needs semimetric[figures]")

from matplotlib.collections import PolyCollection  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.text import Text  # noqa: E402

GREEN, RED = "#009e73", "#d55e00"
EPOCHS = range(10)


def curves():
    ours = Curve("ours", EPOCHS, [90 + epoch / 5 for epoch in EPOCHS], [0.5] * 10)
    few = Curve("few", [0, 5, 9], [90.0, 91, 92], [0.3] * 3)
    table = Curve("Table 1", [9], [93.9], paper=True)
    figure = Curve("Figure 2", [0, 5, 9], [86.0, 92, 93], paper=True)
    return curves_figure(
        [("Recall@1 in per cent", [ours, few, table, figure]), ("NMI in per cent", [ours, table])], "Epochs", "a note"
    )


def angles():
    ours = Curve("MNIST", [30, 40, 50], [91.0, 92, 91], [0.4, 0.5, 0.6])
    return angle_figure([("Recall@1 in per cent", [ours, Curve("MNIST", [30, 45], [92.0, 93.0], paper=True)])])


def maps(classes=10):
    random = np.random.default_rng(0)
    panels = [Panel(f"map {n}", random.normal(size=(60, 2)), np.arange(60) % 10) for n in range(3)]
    return maps_figure([panels[:2], panels[2:]], [f"class {n}" for n in range(classes)], "seed 0")


def hits():
    random = np.random.default_rng(0)
    grey = Shown(random.random((8, 8)), "seven", True)
    photo = Shown(random.integers(0, 256, (6, 8, 3), dtype=np.uint8), "nine", False)
    named = Shown(None, "Black_footed_Albatross", False)
    query = Shown(random.random((8, 8)), "seven")
    rows = [RetrievalRow("initial", query, [grey, photo, named]), RetrievalRow("trained", query, [grey, grey])]
    return retrieval_figure([rows, rows[:1]], "seed 0")


def scalings():
    graph = Scaling("graph", "Examples N", [1000, 2000, 4000], [0.1, 0.41, 1.6], 2.0, 2)
    walk = Scaling("walk", "Examples N", [1000, 2000, 4000], [0.1, 0.2, 0.41], 1.02, 1)
    return scaling_figure([graph, walk, Scaling("walk", "Width d", [64, 128], [0.1, 0.15], 0.58, None)])


ALL = {"curves": curves, "angles": angles, "maps": maps, "hits": hits, "scalings": scalings}


def words(owner) -> list[str]:
    return [text.get_text() for text in owner.findobj(Text) if text.get_text()]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines(axes) -> dict[str, object]:
    return {line.get_label(): line for line in axes.lines}


def test_curves_label_axes_and_legend() -> None:
    figure = curves()
    assert [axes.get_xlabel() for axes in figure.axes] == ["Epochs"] * 2
    assert [axes.get_ylabel() for axes in figure.axes] == ["Recall@1 in per cent", "NMI in per cent"]
    assert legend(figure) == ["ours", "few", "Table 1 (paper)", "Figure 2 (paper)"]
    assert figure._supxlabel.get_text() == "a note"
    assert not figure.axes[0].spines["top"].get_visible()


def test_published_curves_are_black_and_dashed() -> None:
    drawn = lines(curves().axes[0])
    for name in ("Table 1 (paper)", "Figure 2 (paper)"):
        assert drawn[name].get_linestyle() == "--"
        assert to_hex(drawn[name].get_color()) == "#000000"
    assert drawn["Table 1 (paper)"]._dash_pattern != drawn["Figure 2 (paper)"]._dash_pattern
    assert drawn["ours"].get_linestyle() == "-"
    assert to_hex(drawn["ours"].get_color()) != "#000000"


def test_a_constant_published_curve_spans_the_axes() -> None:
    line = lines(curves().axes[0])["Table 1 (paper)"]
    assert [*line.get_ydata()] == [93.9, 93.9]
    assert [*line.get_xdata()] == [0, 1]
    assert line.get_transform() == line.axes.get_yaxis_transform(which="grid")


def test_spread_is_a_band_or_for_few_points_bars() -> None:
    axes = curves().axes[0]
    (band,) = [one for one in axes.collections if isinstance(one, PolyCollection)]
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(89.5)
    assert heights.max() == pytest.approx(92.3)
    (bars,) = axes.containers
    assert [np.ptp(segment[:, 1]) for segment in bars[2][0].get_segments()] == pytest.approx([0.6] * 3)


def test_a_curve_has_one_look_in_all_panels() -> None:
    ours, other = Curve("ours", [0, 1], [1.0, 2]), Curve("other", [0, 1], [2.0, 3])
    first, second = curves_figure([("a", [other, ours]), ("b", [ours])], "Epochs").axes
    assert lines(first)["ours"].get_color() == lines(second)["ours"].get_color()
    assert lines(first)["ours"].get_marker() == lines(second)["ours"].get_marker()
    assert lines(first)["ours"].get_marker() != lines(first)["other"].get_marker()


def test_four_panels_take_two_rows() -> None:
    figure = curves_figure([("a", [Curve("ours", [0], [1.0])])] * 4, "Epochs")
    assert len({round(axes.get_position().y0, 3) for axes in figure.axes}) == 2
    assert figure.get_figwidth() == 7


def test_angles_have_bars_and_open_squares() -> None:
    figure = angles()
    (axes,) = figure.axes
    assert axes.get_xlabel() == "Angle α in degrees"
    assert [*axes.get_xticks()] == [30, 40, 45, 50]
    (bars,) = axes.containers
    assert [np.ptp(segment[:, 1]) for segment in bars[2][0].get_segments()] == pytest.approx([0.8, 1.0, 1.2])
    squares = lines(axes)["MNIST (paper)"]
    assert squares.get_marker() == "s"
    assert squares.get_linestyle() == "None"
    assert squares.get_markerfacecolor() == "none"
    assert to_hex(squares.get_markeredgecolor()) == "#000000"
    assert legend(figure) == ["MNIST", "MNIST (paper)"]


def test_maps_show_all_points_in_ten_looks() -> None:
    figure = maps()
    assert [axes.get_title() for axes in figure.axes] == ["map 0", "map 1", "map 2"]
    for axes in figure.axes:
        assert sum(len(dots.get_offsets()) for dots in axes.collections) == 60
        assert len({to_hex(dots.get_facecolor()[0]) for dots in axes.collections}) == 10
        assert not axes.get_xticks().size
        assert not axes.get_yticks().size
    assert legend(figure) == [f"class {n}" for n in range(10)]
    assert len({handle.get_marker() for handle in figure.legends[0].legend_handles}) == 10


def frames(figure):
    return [axes.spines["left"] for axes in figure.axes]


def test_frames_and_marks_tell_right_from_wrong() -> None:
    figure = hits()
    looks = [(to_hex(frame.get_edgecolor()), frame.get_linestyle()) for frame in frames(figure)]
    right, wrong, query = (GREEN, "-"), (RED, "--"), ("#555555", "-")
    assert looks == [query, right, wrong, wrong, right, right, query, right, wrong, wrong]
    marks = ["".join(word for word in words(axes) if word in "✓✗") for axes in figure.axes]
    assert marks == ["", "✓", "✗", "✗", "✓", "✓", "", "✓", "✗", "✗"]


def test_names_methods_and_queries_are_written() -> None:
    figure = hits()
    written = [text.get_text() for text in figure.texts]
    assert written.count("Query") == 2
    assert written.count("initial") == 2
    assert written.count("trained") == 1
    assert written[-1] == "seed 0"
    assert figure.axes[0].get_xlabel() == "seven"
    named = figure.axes[3]
    assert not named.images
    assert [word.split() for word in words(named) if word != "✗"] == [["Black", "footed", "Albatross"]]
    assert [axes.images[0].get_clim() for axes in figure.axes[1:3]] == [(0, 1), (0, 255)]


@pytest.mark.parametrize("count", [3, 8, 10])
def test_names_stay_inside_their_cells(count: int) -> None:
    names = ["Hummingbird", "Yellow_headed_Blackbird", "Aston Martin V8 Vantage Convertible 2012", "W" * 30, ""]
    found = [Shown(None, names[n % 5], True) for n in range(count)]
    figure = retrieval_figure([[RetrievalRow("ours", Shown(None, "Ani"), found)]])
    figure.draw_without_rendering()
    for axes in figure.axes[1:]:
        name, cell = axes.texts[0].get_window_extent(), axes.get_window_extent()
        assert cell.x0 <= name.x0
        assert name.x1 <= cell.x1
        assert cell.y0 <= name.y0
        assert name.y1 <= cell.y1
        assert cell.x1 < figure.bbox.x1


def test_scaling_draws_points_fits_and_stated_slopes() -> None:
    figure = scalings()
    assert [axes.get_xlabel() for axes in figure.axes] == ["Examples N", "Width d"]
    assert {axes.get_ylabel() for axes in figure.axes} == {"Time in seconds"}
    assert {axes.get_xscale() + axes.get_yscale() for axes in figure.axes} == {"loglog"}
    first, second = ([text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes)
    assert first == ["graph:\nmeasured 2.00, stated 2", "walk:\nmeasured 1.02, stated 1"]
    assert second == ["walk:\nmeasured 0.58"]
    slopes = {"-": [], "--": []}
    for line in figure.axes[0].lines:
        if line.get_linestyle() in slopes:
            x, y = np.log(line.get_xdata()), np.log(line.get_ydata())
            slopes[line.get_linestyle()].append((y[1] - y[0]) / (x[1] - x[0]))
    assert slopes["-"] == pytest.approx([2.0, 1.02])
    assert slopes["--"] == pytest.approx([2, 1])
    assert not any(line.get_linestyle() == "--" for line in figure.axes[1].lines)
    assert legend(figure) == ["fitted slope", "slope stated in the paper"]


@pytest.mark.parametrize("name", ALL)
def test_letters_have_eight_points_and_fit_the_page(name: str) -> None:
    figure = ALL[name]()
    figure.draw_without_rendering()
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())
    drawn = figure.get_tightbbox()
    assert figure.get_figwidth() == 7
    pixel = 1 / 150
    assert min(drawn.x0, drawn.y0) >= -pixel
    assert drawn.x1 <= 7 + pixel
    assert drawn.y1 <= figure.get_figheight() + pixel


@pytest.mark.parametrize("name", ALL)
def test_the_same_figure_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    figure = ALL[name]()
    paths = write_figure(figure, tmp_path / "v1.0")
    assert [path.name for path in paths] == ["v1.0.png", "v1.0.svg"]
    first = [path.read_bytes() for path in paths]
    assert first[0].startswith(b"\x89PNG")
    assert b"<svg" in first[1]
    assert b"dc:date" not in first[1]
    assert [path.read_bytes() for path in write_figure(figure, tmp_path / "v1.0")] == first
    with matplotlib.rc_context({"font.size": 20, "svg.hashsalt": "other", "lines.linewidth": 9}):
        again = write_figure(ALL[name](), tmp_path / "again")
    assert [path.read_bytes() for path in again] == first


def test_a_failed_drawing_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = angles()
    paths = write_figure(figure, tmp_path / "angle")
    before = [path.read_bytes() for path in paths]
    save = figure.savefig

    def fail_svg(*given, format, **options):
        if format == "svg":
            raise OSError("no room")
        save(*given, format=format, **options)

    figure.axes[0].set_title("changed")
    monkeypatch.setattr(figure, "savefig", fail_svg)
    with pytest.raises(OSError, match="no room"):
        write_figure(figure, tmp_path / "angle")
    assert [path.read_bytes() for path in paths] == before


def test_a_failed_write_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_figure(angles(), tmp_path / "angle")
    before = [path.read_bytes() for path in paths]

    def fill_disk(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError("no room")

    monkeypatch.setattr(Path, "write_bytes", fill_disk)
    with pytest.raises(OSError, match="no room"):
        write_figure(curves(), tmp_path / "angle")
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        write_figure(angles(), tmp_path / "none" / "angle")


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_a_figure_names_the_extra_that_it_needs(draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"needs the package matplotlib.*pip install 'semimetric\[figures\]'"):
        draw()


def test_the_module_needs_no_matplotlib_and_no_figure_needs_pyplot() -> None:
    code = (
        "import sys\nfrom semimetric.reporting.figures import Curve, curves_figure\n"
        "assert 'matplotlib' not in sys.modules\n"
        "curves_figure([('y', [Curve('a', [0], [1.0])])], 'x')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Curve("a", [1, 2], [1.0]), "2 x, 1 y and 0 spread"),
        (lambda: Curve("a", [1], [1.0], [1, 2]), "2 spread"),
        (lambda: Curve("a", [], []), "at least one"),
        (lambda: Panel("a", np.zeros((3, 3)), np.zeros(3, int)), r"\(3, 3\)"),
        (lambda: Panel("a", np.zeros((3, 2)), np.zeros(2, int)), r"\(2,\)"),
        (lambda: Scaling("a", "N", [1], [0.0], 1, 1), "above 0"),
        (lambda: curves_figure([], "Epochs"), "at least one panel"),
        (lambda: curves_figure([("y", [])], "Epochs"), "at least one curve"),
        (lambda: scaling_figure([]), "at least one panel"),
        (lambda: maps(11), "11 classes"),
        (lambda: maps_figure([], ["a"]), "need a panel"),
        (lambda: retrieval_figure([]), "each method a hit"),
        (lambda: retrieval_figure([[RetrievalRow("a", Shown(None, "b"), [])]]), "each method a hit"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
