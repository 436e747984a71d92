"""A Mahalanobis metric d2(x, y) = (x - y)^T M (x - y), held as its factor L with M = L L^T."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_dense
from semimetric.core.errors import InputError, RunError
from semimetric.core.files import check_input, read_tensors, write_tensors
from semimetric.metric.geometry import check_factor, random_orthonormal

ORTHOGONAL = 1e-12  # largest product of two columns of a factor, as a share of the largest square, that is rounding

BLOCK_ROWS = 1 << 13  # examples of which sums take float64 copies at a time

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, eq=False)
class Metric:
    """A Mahalanobis metric. Distances under M are Euclidean distances after ``transform``, x -> L^T x.

    Parameters
    ----------
    factor : (d, l) floating-point tensor
        L of M = L L^T, 1 <= l <= d; copied and kept in float64. A metric is immutable.

    Examples
    --------
    >>> Metric(torch.diag(torch.tensor([2.0, 1.0]))).squared_distances([[0.0, 0.0]], [[1.0, 1.0]]).tolist()
    [[5.0]]
    """

    factor: Tensor

    def __post_init__(self) -> None:
        check_factor(self.factor)
        if self.factor.is_cpu and not self.factor.isfinite().all():  # on a GPU the check would synchronise
            raise InputError("factor holds values that are not finite; a metric needs finite numbers.")
        copied = self.factor.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        object.__setattr__(self, "factor", copied)

    @classmethod
    def identity(cls, d: int) -> Metric:
        """Euclidean distance.

        Parameters
        ----------
        d : int
            Number of features.
        """
        return cls(torch.eye(d, dtype=torch.float64))

    @classmethod
    def random_orthonormal(cls, d: int, l: int, generator: torch.Generator) -> Metric:  # noqa: E741
        """Distance after projection onto a uniformly random subspace.

        Parameters
        ----------
        d, l : int
            Number of features and dimension of the subspace.
        generator : torch.Generator
            Source of random numbers.
        """
        return cls(random_orthonormal(d, l, generator))

    @classmethod
    def principal(cls, features: Tensor, n_components: int) -> Metric:
        """Distance in the principal components of the features.

        Parameters
        ----------
        features : (N, d) tensor
            One example per row.
        n_components : int
            Number of components.
        """
        check_components(features, n_components)
        vectors = torch.linalg.eigh(centred_scatter(features, exact_mean(features))).eigenvectors
        return cls(vectors.flip(1)[:, :n_components])

    @classmethod
    def from_matrix(cls, matrix: Tensor, n_components: int | None = None, tolerance: float = 1e-8) -> Metric:
        """Metric of a positive semi-definite matrix M.

        Parameters
        ----------
        matrix : (d, d) floating-point tensor
            M. Asymmetry and negative eigenvalues up to ``tolerance`` times the largest entry are treated as rounding.
        n_components : int, optional
            Number of largest eigenvalues to keep; all if None.
        tolerance : float
            Relative rounding error.
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
                "Call project_psd on it first."
            )
        largest = slice(d - kept, d)
        return cls((vectors[:, largest] * values[largest].clamp(min=0).sqrt()).flip(1))

    @property
    def matrix(self) -> Tensor:
        """M = L L^T, (d, d) float64."""
        return self.factor @ self.factor.T

    def eigenvalues(self) -> Tensor:
        """The l largest eigenvalues of M, in no order; all others are 0.

        They are those of L^T L: its diagonal where the columns of L are orthogonal, as ``from_matrix`` makes them.
        """
        products = self.factor.T @ self.factor
        lengths = products.diagonal().clone()
        crossed = float((products - lengths.diag()).abs().max())
        if crossed <= ORTHOGONAL * float(lengths.max()):
            return lengths
        values: Tensor = torch.linalg.eigvalsh(products).clamp(min=0)
        return values

    def transform(self, features: Any) -> Tensor:
        """Map rows x to L^T x.

        Parameters
        ----------
        features : (N, d) array
            Gradients flow through a tensor.

        Returns
        -------
        (N, l) tensor
            Of the features' type.
        """
        points = _as_features(features)
        if points.shape[-1] != self.factor.shape[0]:
            raise InputError(f"features have {points.shape[-1]} columns; this metric is for {self.factor.shape[0]}.")
        return points @ self.factor.to(points.dtype)

    def squared_distances(self, a: Any, b: Any = None) -> Tensor:
        """Squared distances of all pairs of rows.

        Parameters
        ----------
        a : (N, d) array
            Features.
        b : (K, d) array, optional
            Other features; ``a`` if None.

        Returns
        -------
        (N, K) tensor
            Squared distance of each row of ``a`` to each row of ``b``.
        """
        check_dense(len(a), len(a if b is None else b), "Measure in blocks of rows.")
        left = self.transform(a)
        right = left if b is None else self.transform(b)
        squares = left.square().sum(1)[:, None] + right.square().sum(1)[None, :]
        return torch.addmm(squares, left, right.T, alpha=-2).clamp(min=0)

    def paired_squared_distances(self, a: Tensor, b: Tensor) -> Tensor:
        """Squared distance of each row to the same row of another tensor.

        Parameters
        ----------
        a, b : (N, d) tensors
            Features.

        Returns
        -------
        (N,) tensor
            Squared distances.
        """
        return self.transform(a - b).square().sum(-1)

    def is_orthonormal(self, tolerance: float = 1e-10) -> bool:
        """Whether the columns of L are orthonormal.

        Parameters
        ----------
        tolerance : float
            Largest absolute entry of L^T L - I.
        """
        gram = self.factor.T @ self.factor
        gram.diagonal().sub_(1)
        return float(gram.abs().max()) <= tolerance

    def to(self, device: torch.device | str) -> Metric:
        """The same metric on another device.

        Parameters
        ----------
        device : torch.device or str
            Target device.
        """
        return Metric(self.factor.to(device))

    def save(self, path: Path | str) -> None:
        """Write the metric to one safetensors file, atomically.

        Parameters
        ----------
        path : Path or str
            File to write.
        """
        write_tensors(Path(path), {"factor": self.factor})

    @classmethod
    def load(cls, path: Path | str) -> Metric:
        """Read a metric that ``save`` wrote.

        Parameters
        ----------
        path : Path or str
            File to read.
        """
        check_input(Path(path), "a metric that save wrote")
        tensors, _ = read_tensors(Path(path))
        if set(tensors) != {"factor"}:
            raise RunError(f"{path} holds {sorted(tensors)} instead of a metric's factor; give a file that save wrote.")
        return cls(tensors["factor"])


def check_components(features: Tensor, n_components: int) -> None:
    """Refuse features (N, d) with fewer than ``n_components`` columns."""
    if features.ndim != 2 or not 1 <= n_components <= features.shape[1]:
        raise InputError(
            f"n_components is {n_components}; for features of shape {tuple(features.shape)} it must be from 1 to the "
            "number of columns."
        )


def exact_mean(features: Tensor) -> Tensor:
    """Mean row (d,) in float64."""
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    for _, block in exact_blocks(features):
        total += block.sum(0)
    return total / len(features)


def exact_blocks(features: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of features (N, d) in float64, block by block: a copy of all would take many times the memory."""
    for start in range(0, len(features), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        yield rows, features.detach()[rows].to(torch.float64)


def centred_scatter(features: Tensor, mean: Tensor, factor: Tensor | None = None) -> Tensor:
    """Sum of y y^T over y = factor^T (x - mean), (l, l), for the rows x of features (N, d); y = x - mean without it."""
    width = features.shape[1] if factor is None else factor.shape[1]
    total = mean.new_zeros(width, width)
    for _, block in exact_blocks(features):
        centred = block - mean
        points = centred if factor is None else centred @ factor
        total += points.T @ points
    return total


def _as_features(features: Any) -> Tensor:
    """Floating-point features; a tensor keeps its gradient."""
    tensor = features if isinstance(features, Tensor) else as_tensor(features, "features")
    return tensor if tensor.is_floating_point() else tensor.double()


def near_isometry(metric: Metric, features: Tensor, pairs: int, generator: torch.Generator) -> dict[float, float]:
    """How well the metric keeps distances, up to scale, on random pairs of rows of ``features`` (N, d).

    Returns quantiles of (d / ||L||_F^2) ||L^T v||^2 / ||v||^2 over differences v; for orthonormal L the scale is d / l.
    By the Johnson-Lindenstrauss lemma they concentrate around 1 for a random subspace of large dimension. For a learned
    L, low quantiles near 0 mean that some differences are projected away.
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
