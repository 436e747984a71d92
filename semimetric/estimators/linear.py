"""The five classical methods as scikit-learn estimators: a linear metric on feature vectors.

Parameters, defaults and their descriptions are those of the methods' settings. Standardise columns of different units
first, for instance with ``StandardScaler`` in a ``Pipeline``.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.core.settings import build_settings
from semimetric.data.samples import Samples
from semimetric.estimators.base import MetricEstimator, seed_of
from semimetric.methods import METHODS
from semimetric.pipeline.linear import linear_components
from semimetric.pipeline.plan import NetworkSettings, Plan
from semimetric.training import PretrainSettings, TrainingSettings

PARAMETERS = """

    ``transform`` maps X to X L, with the learned metric M = L L^T.

    Parameters
    ----------
    n_components : int, optional
        Dimensions of the embedding; by default all.
{settings}
    random_state : int, RandomState or None
        Seed of random starts.

    Attributes
    ----------
    components_ : (l, d) array
        L transposed.

    References
    ----------
    {reference}.
    """


class LinearEstimator(MetricEstimator):
    """Base of the estimators that learn a metric on vectors; a subclass names its ``method``."""

    method: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Give the class the constructor and the documentation that its method's settings describe."""
        super().__init_subclass__()
        kind = METHODS[cls.method]
        fields = [field for field in dataclasses.fields(kind.Settings) if field.name != "components"]
        hints = get_type_hints(kind.Settings)
        defaults = {"n_components": None} | {field.name: field.default for field in fields} | {"random_state": None}

        def __init__(self: Any, n_components: int | None = None, **values: Any) -> None:
            unknown = [name for name in values if name not in defaults]
            if unknown:
                raise TypeError(f"{cls.__name__} has no parameter {unknown[0]!r}; it has: {', '.join(defaults)}")
            for name, value in (defaults | values | {"n_components": n_components}).items():
                setattr(self, name, value)

        kinds = inspect.Parameter
        parameters = [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
        for name, default in defaults.items():
            place = kinds.POSITIONAL_OR_KEYWORD if name == "n_components" else kinds.KEYWORD_ONLY
            parameters.append(kinds(name, place, default=default))
        __init__.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]
        rows = (f"    {f.name} : {_type_name(hints[f.name])}\n        {f.metadata['help']}" for f in fields)
        cls.__doc__ = (cls.__doc__ or "") + PARAMETERS.format(settings="\n".join(rows), reference=kind.reference)

    def _plan(self, samples: Samples, labels: Tensor, device: torch.device) -> Plan:
        if samples.kind != "vectors":
            raise InputError(f"{type(self).__name__} learns from vectors (N, d), and X holds {samples.kind}.")
        values = self.get_params(deep=False)
        n_components, random_state = values.pop("n_components"), values.pop("random_state")
        values |= linear_components(self.method, n_components, samples.shape()[0])
        settings = build_settings(METHODS[self.method].Settings, values, f"method {self.method!r}")
        if hasattr(settings, "k"):
            settings = dataclasses.replace(settings, k=min(settings.k, len(samples) - 1))
        network = NetworkSettings("none", preprocess="none")
        return Plan(self.method, seed_of(random_state), network, TrainingSettings(), PretrainSettings(), settings)

    def _device(self) -> torch.device:
        return torch.device("cpu")

    def adopt(self, *fitted: Any) -> None:
        """Take over a fitted model."""
        super().adopt(*fitted)
        self.components_ = self.fitted_.model.metric.factor.T.cpu().numpy()


def _type_name(hint: Any) -> str:
    return getattr(hint, "__name__", "") if isinstance(hint, type) else "str"


class LRML(LinearEstimator):
    """Laplacian regularized metric learning."""

    method = "lrml"


class SERAPH(LinearEstimator):
    """Information-theoretic metric learning with hypersparsity."""

    method = "seraph"


class ISDML(LinearEstimator):
    """Improved semi-supervised distance metric learning."""

    method = "isdml"


class APLLR(LinearEstimator):
    """Affinity propagation with a log-likelihood ratio prior."""

    method = "apllr"


class APIT(LinearEstimator):
    """Affinity propagation with an information-theoretic prior."""

    method = "apit"
