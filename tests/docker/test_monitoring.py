"""Prometheus reads docker/monitoring: the alerts fire as expected, and every expression of the
alerts and of Grafana's dashboard has values from a live server. Grafana itself is not started.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from builder.parity.clients import HttpClient
from builder.serving import FREE_PORTS, Server, find, serve
from builder.triton import publish
from tests.docker.test_compose import MONITORING, expressions
from tests.serving.ports import free_port
from tests.triton.artifacts import scorer

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(
        shutil.which("promtool") is None, reason="needs Debian's prometheus"
    ),
]

ALERTS = Path(__file__).with_name("alerts.yml")
NEEDS_GPU = "nv_gpu_"
BLOCK = 16
SCRAPES_SECONDS = 12.0
START_SECONDS = 60.0


def promtool(*words: object) -> None:
    process = subprocess.run(
        ["promtool", *map(str, words)], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of docker/monitoring and valid references between them."""
    shutil.copy(MONITORING / "alerts.yml", tmp_path / "alerts.rules.yml")
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["rule_files"] = [str(tmp_path / "alerts.rules.yml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_promtool_accepts_the_files(folder: Path) -> None:
    promtool("check", "rules", folder / "alerts.rules.yml")
    promtool("check", "config", folder / "prometheus.yml")


def test_alerts_fire_as_expected(folder: Path) -> None:
    shutil.copy(ALERTS, folder)
    promtool("test", "rules", folder / ALERTS.name)
    tested = {
        one["alertname"]
        for case in yaml.safe_load(ALERTS.read_text())["tests"]
        for one in case["alert_rule_test"]
        if one.get("exp_alerts")
    }
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    assert tested == {rule["alert"] for rule in group["rules"]}


@pytest.mark.live
def test_prometheus_evaluates_every_expression(folder: Path) -> None:
    publish(scorer(), folder / "repository")
    with (
        serve(folder / "repository", **FREE_PORTS) as server,
        prometheus(folder, server.metrics_url) as url,
    ):
        send_requests(server, SCRAPES_SECONDS)
        (target,) = query_api(url, "targets")["activeTargets"]
        assert target["health"] == "up", target
        (group,) = query_api(url, "rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}, group
        assert {rule["state"] for rule in group["rules"]} <= {"inactive", "pending"}
        scraped = set(query_api(url, "label/__name__/values"))
        named = set(re.findall(r"\bnv_\w+|\bup\b", " ".join(expressions().values())))
        missing = named - scraped
        assert all(name.startswith(NEEDS_GPU) for name in missing), missing
        assert missing <= known_to_server(missing)
        results = {where: evaluate(url, text) for where, text in expressions().items()}
    dashboard = {
        where: rows for where, rows in results.items() if not where.startswith("Triton")
    }
    empty = [where for where, rows in dashboard.items() if not rows]
    assert [where.split()[0] for where in empty] == ["GPU", "GPU"], empty
    for where, rows in dashboard.items():
        assert all(row["metric"].get("model") == "scorer" for row in rows), where
    assert float(dashboard["Requests a second A"][0]["value"][1]) > 0


def known_to_server(names: set[str]) -> set[str]:
    """The metrics whose names are in the server's library.

    A host without a GPU does not serve those of a GPU. The compiler stores long names in blocks, of
    which the first has 16 characters.
    """
    executable = find().executable.resolve()
    beside = [
        one
        for parent in executable.parents[:4]
        for one in parent.glob("*/libtritonserver*")
    ]
    data = b"".join(path.read_bytes() for path in (executable, *beside))
    return {name for name in names if name.encode()[:BLOCK] in data}


def send_requests(server: Server, seconds: float) -> None:
    """Send requests to the model for this time, twice a second."""
    deadline = time.monotonic() + seconds
    with closing(HttpClient(server.http_url, 30)) as client:
        inputs = {"x": np.zeros((1, 3), "float32"), "ids": np.zeros((1, 1), "int64")}
        while time.monotonic() < deadline:
            client.infer("scorer", inputs)
            time.sleep(0.5)


@contextmanager
def prometheus(folder: Path, metrics: str) -> Iterator[str]:
    """Run a Prometheus that reads the metrics at an address and the alerts. Yields its address."""
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [metrics]}]
    (folder / "live.yml").write_text(yaml.safe_dump(config))
    url = f"127.0.0.1:{free_port()}"
    words = [
        f"--config.file={folder / 'live.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
    try:
        wait_ready(process, url, folder / "log")
        yield url
    finally:
        process.terminate()
        process.wait(30)


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{url}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def query_api(url: str, what: str) -> Any:
    """The result of Prometheus' API. A wrong expression is an HTTP error."""
    with urllib.request.urlopen(f"http://{url}/api/v1/{what}", timeout=30) as response:
        record = json.load(response)
    assert record["status"] == "success" and not record.get("warnings"), record
    return record["data"]


def evaluate(url: str, expression: str) -> Any:
    """The current series of the expression; Grafana inserts the interval."""
    text = expression.replace("$__rate_interval", "10s")
    return query_api(url, f"query?{urllib.parse.urlencode({'query': text})}")["result"]
