"""The five classical methods as scikit-learn estimators: a linear metric on feature vectors.

Their parameters and defaults are those of the methods' settings; what they mean is on each method's page. Columns of
different units should be standardised first, for instance with ``StandardScaler`` in a ``Pipeline``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.data.samples import Samples
from semimetric.estimators.semimetric import MetricEstimator, seed_of
from semimetric.model.fitted import Learned
from semimetric.pipeline.choice import Choice
from semimetric.pipeline.learn import Task, learn
from semimetric.training import choose_device


class LinearEstimator(MetricEstimator):
    """A method that learns a metric M = L L^T on vectors; ``transform`` maps X to X L.

    Attributes
    ----------
    components_ : (l, d) array
        L transposed.
    """

    method: ClassVar[str]

    def _learn(self, samples: Samples, labels: Tensor) -> Learned:
        if samples.kind != "vectors":
            raise InputError(f"{type(self).__name__} learns from vectors (N, d), and X holds {samples.kind}.")
        changes = self.get_params(deep=False)
        n_components, random_state = changes.pop("n_components"), changes.pop("random_state")
        if "k" in changes:
            changes["k"] = min(changes["k"], len(samples) - 1)
        task = Task(
            "vectors",
            samples.tensor,
            labels,
            self.method,
            Choice("none", "none"),
            changes,
            n_components,
            seed_of(random_state),
            shape=samples.shape(),
        )
        return learn(task, choose_device("cpu"))

    def adopt(self, learned: Learned, classes: Any) -> None:
        """Become the estimator that has learned this."""
        super().adopt(learned, classes)
        self.components_ = learned.model.metric.factor.T.cpu().numpy()


class LRML(LinearEstimator):
    """Laplacian regularized metric learning (Hoi, Liu and Chang, CVPR 2008)."""

    method = "lrml"

    def __init__(
        self,
        n_components: int | None = None,
        *,
        k: int = 6,
        dissimilar_weight: float = 1.0,
        bounded_share: float = 0.5,
        graph_weight: float = 3.0,
        ridge: float = 0.3,
        normalized: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.k = k
        self.dissimilar_weight = dissimilar_weight
        self.bounded_share = bounded_share
        self.graph_weight = graph_weight
        self.ridge = ridge
        self.normalized = normalized
        self.random_state = random_state


class SERAPH(LinearEstimator):
    """Information-theoretic metric learning with hypersparsity (Niu, Dai, Yamada and Sugiyama, ICML 2012)."""

    method = "seraph"

    def __init__(
        self,
        n_components: int | None = None,
        *,
        eta: float = 100.0,
        mu: float = 1.0,
        trace_weight: float = 0.001,
        solver: Literal["gradient", "convex"] = "gradient",
        iterations: int = 50,
        most_pairs: int = 20000,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.eta = eta
        self.mu = mu
        self.trace_weight = trace_weight
        self.solver = solver
        self.iterations = iterations
        self.most_pairs = most_pairs
        self.random_state = random_state


class ISDML(LinearEstimator):
    """Improved semi-supervised distance metric learning (Ying, Wen, Shi, Peng, Peng and Qiao, TNNLS 2018)."""

    method = "isdml"

    def __init__(
        self,
        n_components: int | None = None,
        *,
        k: int = 10,
        dissimilar_weight: float = 1.0,
        bounded_share: float = 0.5,
        graph_weight: float = 3.0,
        ridge: float = 0.3,
        bandwidth_steps: float = 10.0,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.k = k
        self.dissimilar_weight = dissimilar_weight
        self.bounded_share = bounded_share
        self.graph_weight = graph_weight
        self.ridge = ridge
        self.bandwidth_steps = bandwidth_steps
        self.random_state = random_state


class APLLR(LinearEstimator):
    """Affinity propagation with a log-likelihood ratio prior (Dutta and Sekhar, ICANN 2018)."""

    method = "apllr"

    def __init__(
        self,
        n_components: int | None = None,
        *,
        k: int = 10,
        gamma: float = 0.99,
        graph_weight: float = 1.0,
        dissimilar_weight: float = 1.0,
        affinities: Literal["all", "edges", "positive-edges", "absolute-edges"] = "all",
        indefinite: Literal["clip", "cap"] = "clip",
        shrinkage: float = 0.7,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.k = k
        self.gamma = gamma
        self.graph_weight = graph_weight
        self.dissimilar_weight = dissimilar_weight
        self.affinities = affinities
        self.indefinite = indefinite
        self.shrinkage = shrinkage
        self.random_state = random_state


class APIT(LinearEstimator):
    """Affinity propagation with an information-theoretic prior (Dutta and Sekhar, ICANN 2018)."""

    method = "apit"

    def __init__(
        self,
        n_components: int | None = None,
        *,
        k: int = 10,
        gamma: float = 0.99,
        graph_weight: float = 1.0,
        dissimilar_weight: float = 1.0,
        affinities: Literal["all", "edges", "positive-edges", "absolute-edges"] = "all",
        indefinite: Literal["clip", "cap"] = "clip",
        slack: float = 0.3,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.k = k
        self.gamma = gamma
        self.graph_weight = graph_weight
        self.dissimilar_weight = dissimilar_weight
        self.affinities = affinities
        self.indefinite = indefinite
        self.slack = slack
        self.random_state = random_state
