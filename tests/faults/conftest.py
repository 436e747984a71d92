from __future__ import annotations

from pathlib import Path

import pytest
from helpers import damage


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, runs and indexes that no test changes."""
    return damage.make_home(tmp_path_factory.mktemp("home"))
