"""The estimator for vectors, images and photographs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.data.samples import Samples
from semimetric.estimators.base import MetricEstimator, seed_of
from semimetric.methods import METHODS
from semimetric.pipeline.own import scaling_of
from semimetric.pipeline.plan import OF_OWN_NETWORK, Plan
from semimetric.pipeline.resolve import resolve_own
from semimetric.training import Printed, Silent, choose_device


class SemiMetric(MetricEstimator):
    """Learns an embedding from a few labelled and many unlabelled examples.

    It takes a matrix (N, d), a DataFrame of numbers, categories and text, images (N, C, H, W), (N, H, W, C) or
    (N, H, W), or a sequence of paths of photographs.

    Parameters
    ----------
    method : str
        Name of a method; ``semimetric methods`` lists them.
    encoder : str or nn.Module
        The network. "auto" takes ``mlp`` for vectors (none for linear methods), ``resnet9`` for images on a GPU
        (``resnet9-512`` for ``consensus`` on 10,000 colour images or more) and ``small-cnn`` on a CPU. For photographs
        it takes the pretrained network of ``weights``, or the best one on this machine: of the extra ``photos``, or
        fetched by timm, torchvision or transformers. A module is copied.
    n_components : int, optional
        Dimensions of the embedding; by default all of the network's.
    weights : path, optional
        File with the weights of a pretrained network.
    fine_tune : bool
        Train the pretrained network itself. By default it is frozen, and a linear map of its features is trained.
    side : int, optional
        Side of photographs in pixels; by default that of a pretrained network (320 for efficientnet-lite2-gem, 224 for
        others), else 64 on a GPU and 32 on a CPU.
    preprocess : str
        Scaling of the inputs; "auto" standardises columns or channels. A DataFrame with categories, text or gaps is
        scaled by its schema.
    frozen_share : float, optional
        Share of a frozen network's own features in squared distances; by default 0.5, with ``n_components`` 0. It
        keeps search among classes without labels as good as with the frozen network.
    mirror : bool
        Average the features of an image with those of its mirror image, in twice the time; not for digits or letters.
    epochs : int, optional
        Epochs of training; by default the method's own.
    settings : dict, optional
        Further settings of the method and of the training, by name.
    device : str
        "auto", "cpu" or "cuda".
    random_state : int, RandomState or None
        Seed of initial weights, batches and views.
    verbose : int
        1 prints a line of progress about every second, 2 one for every epoch. With 0 lines are only logged, under the
        name ``semimetric``, about every ten seconds.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from semimetric import SemiMetric
    >>> X, y = load_wine(return_X_y=True)
    >>> labels = y.copy()
    >>> labels[30:] = -1; labels[100:105] = 1; labels[150:155] = 2
    >>> model = SemiMetric(random_state=0).fit(X, labels)
    >>> model.transform(X).shape
    (178, 64)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    def __init__(
        self,
        method: str = "consensus",
        encoder: Any = "auto",
        n_components: int | None = None,
        *,
        weights: Any = None,
        fine_tune: bool = False,
        side: int | None = None,
        preprocess: Any = "auto",
        frozen_share: float | None = None,
        mirror: bool = False,
        epochs: int | None = None,
        settings: dict[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.n_components = n_components
        self.weights = weights
        self.fine_tune = fine_tune
        self.side = side
        self.preprocess = preprocess
        self.frozen_share = frozen_share
        self.mirror = mirror
        self.epochs = epochs
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _needs_labels(self) -> bool:
        kind = METHODS.get(self.method)
        return kind is None or (kind.needs.labels and not kind.labels_optional)

    def _plan(self, samples: Samples, labels: Tensor, device: torch.device) -> Plan:
        given = dict(self.settings or {})
        for name in {*OF_OWN_NETWORK} & {*given}:
            raise InputError(f"settings holds {name!r}, a parameter of SemiMetric itself. Pass SemiMetric({name}=...).")
        asked = {"encoder": self.encoder, "weights": self.weights, "side": self.side, "preprocess": self.preprocess}
        asked |= {"frozen_share": self.frozen_share, "mirror": self.mirror}
        if self.preprocess == "auto":
            asked |= scaling_of(samples.schema)
        given |= asked | ({} if self.epochs is None else {"epochs": self.epochs})
        if self.n_components is not None:
            given["components"] = _checked_width(self.n_components)
        seed = seed_of(self.random_state)
        return resolve_own(samples.kind, samples.shape(), labels, device, self.method, seed, self.fine_tune, **given)

    def _device(self) -> torch.device:
        return choose_device(self.device)

    def _progress(self) -> Silent:
        return Printed(self.verbose) if self.verbose else Silent()


def _checked_width(n_components: Any) -> Any:
    whole = isinstance(n_components, int | np.integer) and not isinstance(n_components, bool)
    if whole and n_components < 1:
        raise InputError(f"n_components must be a whole number of at least 1, or None, got {n_components!r}.")
    return n_components
