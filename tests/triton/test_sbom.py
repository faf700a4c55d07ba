"""The bill of materials: valid CycloneDX, with the packages that are installed."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from builder.errors import EnvironmentProblem, PublishBlocked
from builder.triton import sbom


def test_sbom_lists_installed_packages(tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    file = sbom.write(tmp_path / "repository.cdx.json")
    text = file.read_text()
    document = json.loads(text)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    versions = {one["name"]: one["version"] for one in document["components"]}
    assert versions["torch"] == importlib.metadata.version("torch")
    assert versions["numpy"] == importlib.metadata.version("numpy")
    assert document["metadata"]["component"]["name"] == "trt-build"
    needed = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    assert any(ref.startswith("numpy@") for ref in needed["trt-build"])
    assert any(
        ref.startswith("markupsafe@") for ref in needed[f"jinja2@{versions['jinja2']}"]
    )
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_errors_name_the_package_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PublishBlocked, match="was not written") as error:
        sbom.write(tmp_path / "none" / "file.json")
    assert error.value.fix == "use another path"
    monkeypatch.setitem(__import__("sys").modules, "cyclonedx.output.json", None)
    with pytest.raises(EnvironmentProblem, match="cyclonedx-python-lib"):
        sbom.write(tmp_path / "file.json")
