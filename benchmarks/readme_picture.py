"""The picture of the README: test digits before and after training with 5 labels per class, as an SVG file.

    python benchmarks/readme_picture.py docs/embedding.svg

Both maps are t-SNE of the 596 test examples, with the same settings and seed; colours are the true classes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.manifold import TSNE

from semimetric.data import load_dataset
from semimetric.encoders import encode
from semimetric.evaluation import evaluate
from semimetric.pipeline.data import benchmark_data
from semimetric.pipeline.fit import build_trainer, prepare
from semimetric.pipeline.resolve import resolve_benchmark

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#ee7733", "#0f2080", "#85c0f9")
SIDE, TOP, GAP = 360, 54, 40


def panel(points: torch.Tensor, labels: torch.Tensor, left: int, title: str, scores: str) -> list[str]:
    """A map of points (N, 2) in [0, 1] with its title."""
    lines = [f'<text x="{left}" y="22" class="title">{title}</text><text x="{left}" y="42">{scores}</text>']
    lines.append(f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#ddd"/>')
    for (x, y), label in zip(points.tolist(), labels.tolist(), strict=True):
        place = f'cx="{left + 12 + x * (SIDE - 24):.1f}" cy="{TOP + 12 + y * (SIDE - 24):.1f}"'
        lines.append(f'<circle {place} r="2.6" fill="{COLOURS[label]}"/>')
    return lines


def scaled_map(embeddings: torch.Tensor) -> torch.Tensor:
    """t-SNE of embeddings, scaled to the unit square."""
    points = torch.from_numpy(TSNE(random_state=0, init="pca", perplexity=30).fit_transform(embeddings.numpy()))
    low, high = points.amin(0), points.amax(0)
    return (points - low) / (high - low)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path, help="SVG file to write")
    return options


def main() -> None:
    """Train, draw both maps, write the file."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    plan = resolve_benchmark("digits", seed=0, labels_per_class=5)
    ready = prepare(plan, benchmark_data(plan, load_dataset("digits")))
    assert ready.test_inputs is not None
    assert ready.test_labels is not None
    trainer = build_trainer(plan, ready.training, torch.device("cpu"))
    before = trainer.metric.transform(encode(trainer.encoder, ready.test_inputs))
    result = trainer.fit()
    after = result.metric.transform(encode(result.encoder, ready.test_inputs))
    width, height = 2 * SIDE + GAP + 20, TOP + SIDE + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    ]
    lines.append("<style>text{font:14px sans-serif;fill:#333}.title{font-weight:bold}</style>")
    lines.append(f'<rect width="{width}" height="{height}" fill="#fff"/>')
    for number, (title, embeddings) in enumerate((("Before training", before), ("After, 5 labels per class", after))):
        scores = evaluate(embeddings, ready.test_labels)
        told = f"NMI {100 * scores['nmi']:.1f}, R@1 {100 * scores['recall@1']:.1f}"
        lines += panel(scaled_map(embeddings.double()), ready.test_labels, 10 + number * (SIDE + GAP), title, told)
    args.out.write_text("\n".join([*lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
