"""A method that writes down how many threads each pool has while it is fitted, as an installed package offers it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_info
from torch import Tensor

from semimetric.methods.affinity_triplets import AffinityTriplets
from semimetric.metric import Metric


class Watching(AffinityTriplets):
    """Affinity triplets; each metric step adds a line to the file ``WATCHED``."""

    name = "watching"

    def update_metric(self, metric: Metric, features: Tensor, constraints: Any) -> Metric:
        """Load FAISS, which has pools of its own, and write what there is."""
        import faiss  # noqa: F401

        pools = {Path(pool["filepath"]).name: pool["num_threads"] for pool in threadpool_info()}
        with Path(os.environ["WATCHED"]).open("a") as file:
            file.write(json.dumps(pools | {"torch": torch.get_num_threads()}) + "\n")
        return super().update_metric(metric, features, constraints)
