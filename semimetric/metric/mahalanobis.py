"""A Mahalanobis metric d2(x, y) = (x - y)^T M (x - y), held as its factor L with M = L L^T."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_dense
from semimetric.core.errors import InputError, RunError
from semimetric.core.files import read_tensors, write_tensors
from semimetric.metric.geometry import check_factor, random_orthonormal

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, eq=False)
class Metric:
    """An immutable metric; ``factor`` is L, (d, l) float64, copied from what was given.

    Distances under M are Euclidean distances after ``transform``, x -> L^T x.
    """

    factor: Tensor

    def __post_init__(self) -> None:
        check_factor(self.factor)
        if self.factor.is_cpu and not self.factor.isfinite().all():  # elsewhere the check would wait for the device
            raise InputError("factor holds values that are not finite; a metric needs finite numbers.")
        copied = self.factor.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        object.__setattr__(self, "factor", copied)

    @classmethod
    def identity(cls, d: int) -> Metric:
        """Euclidean distance in d dimensions."""
        return cls(torch.eye(d, dtype=torch.float64))

    @classmethod
    def random_orthonormal(cls, d: int, l: int, generator: torch.Generator) -> Metric:  # noqa: E741
        """Distance after projection onto a uniformly random subspace of dimension l."""
        return cls(random_orthonormal(d, l, generator))

    @classmethod
    def principal(cls, features: Tensor, n_components: int) -> Metric:
        """Distance within the ``n_components`` directions in which the rows of ``features`` (N, d) vary most."""
        points = features.detach().to(torch.float64)
        if points.ndim != 2 or not 1 <= n_components <= points.shape[1]:
            raise InputError(
                f"n_components is {n_components}; for features of shape {tuple(points.shape)} it must be from 1 to the "
                "number of columns."
            )
        centred = points - points.mean(0)
        vectors = torch.linalg.eigh(centred.T @ centred).eigenvectors
        return cls(vectors.flip(1)[:, :n_components])

    @classmethod
    def from_matrix(cls, matrix: Tensor, n_components: int | None = None, tolerance: float = 1e-8) -> Metric:
        """Factor a positive semi-definite M (d, d), keeping its ``n_components`` largest eigenvalues.

        Asymmetry, and negative eigenvalues, up to ``tolerance`` times the largest magnitude are taken for rounding.
        """
        d = matrix.shape[0] if matrix.ndim == 2 else 0
        kept = d if n_components is None else n_components
        if matrix.shape != (d, d) or d == 0 or not matrix.is_floating_point():
            raise InputError(
                f"matrix has the shape {tuple(matrix.shape)} and the type {matrix.dtype}; give a square float matrix."
            )
        if not 1 <= kept <= d:
            raise InputError(f"n_components is {n_components}; it must be from 1 to {d}, the size of the matrix.")
        exact = matrix.detach().to(torch.float64)
        scale = float(exact.abs().max())
        if not float((exact - exact.T).abs().max()) <= tolerance * scale:
            raise InputError("matrix is not symmetric, or not finite; give M = M^T, for instance (M + M^T) / 2.")
        values, vectors = torch.linalg.eigh((exact + exact.T) / 2)
        if float(values[0]) < -tolerance * scale:
            raise InputError(
                f"matrix has the eigenvalue {float(values[0]):.3g}; a metric is positive semi-definite. "
                "Project it onto the cone first."
            )
        largest = slice(d - kept, d)
        return cls((vectors[:, largest] * values[largest].clamp(min=0).sqrt()).flip(1))

    @property
    def matrix(self) -> Tensor:
        """M = L L^T, (d, d) float64."""
        return self.factor @ self.factor.T

    def transform(self, features: Any) -> Tensor:
        """Rows x to rows L^T x, (N, d) to (N, l), in the features' own type; gradients flow through a tensor."""
        points = _as_features(features)
        if points.shape[-1] != self.factor.shape[0]:
            raise InputError(f"features have {points.shape[-1]} columns; this metric is for {self.factor.shape[0]}.")
        return points @ self.factor.to(points.dtype)

    def squared_distances(self, a: Any, b: Any = None) -> Tensor:
        """All squared distances between the rows of a (N, d) and of b (K, d), or of a itself: (N, K)."""
        check_dense(len(a), len(a if b is None else b), "Measure in blocks of rows.")
        left = self.transform(a)
        right = left if b is None else self.transform(b)
        squares = left.square().sum(1)[:, None] + right.square().sum(1)[None, :]
        return torch.addmm(squares, left, right.T, alpha=-2).clamp(min=0)

    def paired_squared_distances(self, a: Tensor, b: Tensor) -> Tensor:
        """Squared distance of each row of a (N, d) to the same row of b: (N,)."""
        return self.transform(a - b).square().sum(-1)

    def is_orthonormal(self, tolerance: float = 1e-10) -> bool:
        """Whether every entry of L^T L - I is within ``tolerance`` of 0."""
        gram = self.factor.T @ self.factor
        gram.diagonal().sub_(1)
        return float(gram.abs().max()) <= tolerance

    def to(self, device: torch.device | str) -> Metric:
        """Return the same metric on another device."""
        return Metric(self.factor.to(device))

    def save(self, path: Path | str) -> None:
        """Write the factor to one safetensors file, atomically."""
        write_tensors(Path(path), {"factor": self.factor})

    @classmethod
    def load(cls, path: Path | str) -> Metric:
        """Read what ``save`` wrote."""
        if not Path(path).is_file():
            raise InputError(f"{path} does not exist, so that no metric can be read from it.")
        tensors, _ = read_tensors(Path(path))
        if set(tensors) != {"factor"}:
            raise RunError(f"{path} holds {sorted(tensors)} instead of a metric's factor; give a file that save wrote.")
        return cls(tensors["factor"])


def _as_features(features: Any) -> Tensor:
    """Floating-point features; a tensor keeps its gradient."""
    tensor = features if isinstance(features, Tensor) else as_tensor(features, "features")
    return tensor if tensor.is_floating_point() else tensor.double()


def near_isometry(metric: Metric, features: Tensor, pairs: int, generator: torch.Generator) -> dict[float, float]:
    """How far the metric is from keeping distances, up to scale, on random pairs of rows of ``features`` (N, d).

    Returns quantiles of (d / ||L||_F^2) ||L^T v||^2 / ||v||^2 over differences v; for orthonormal L the scale is
    d / l. By the Johnson-Lindenstrauss lemma they gather around 1 for a random subspace of large dimension. For a
    learned L nothing bounds them from below: low quantiles near 0 say that some differences have been projected away.
    """
    n = len(features)
    if n < 2 or pairs < 1:
        raise InputError(f"There are {n} features and {pairs} pairs; give at least 2 features and 1 pair.")
    first = torch.randint(n, (pairs,), generator=generator, device=generator.device)
    other = (first + torch.randint(1, n, (pairs,), generator=generator, device=generator.device)) % n
    exact = features.detach().to(torch.float64)
    differences = exact[first.to(exact.device)] - exact[other.to(exact.device)]
    lengths = differences.square().sum(1)
    distinct = lengths > 0
    if not distinct.any():
        raise InputError("All sampled pairs of features coincide; give features that differ, or more pairs.")
    scale = metric.factor.shape[0] / metric.factor.square().sum()
    ratios = scale * metric.transform(differences[distinct]).square().sum(1) / lengths[distinct]
    levels = torch.tensor(QUANTILES, dtype=ratios.dtype, device=ratios.device)
    return dict(zip(QUANTILES, torch.quantile(ratios, levels).tolist(), strict=True))
