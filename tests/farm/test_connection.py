"""What `connected` changes in this process, with a stand-in for Ray."""

from __future__ import annotations

import os
from unittest.mock import Mock

import pytest

from builder.farm import cluster
from builder.farm.config import Farm


@pytest.mark.parametrize(("address", "setting"), [("local", "0"), ("auto", None)])
def test_usage_statistics_are_off_in_local_clusters_only(
    address: str, setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remote cluster decides itself whether it reports its usage to Ray's authors."""
    monkeypatch.setattr(os, "environ", {})
    library = Mock(is_initialized=Mock(return_value=False))
    monkeypatch.setattr(cluster, "import_ray", lambda: library)
    monkeypatch.setattr(cluster, "local_cpus", lambda farm: 1)
    with cluster.connected(Farm(address, ())):
        assert os.environ.get("RAY_USAGE_STATS_ENABLED") == setting
