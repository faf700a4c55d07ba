"""The software bill of materials of this environment, as CycloneDX 1.6 in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from builder import __version__, files
from builder.errors import EnvironmentProblem, PublishBlocked
from builder.unforeseen import file_system_errors

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component


def write(file: Path) -> Path:
    """Write the packages of this Python environment, with versions and Package URLs, to `file`.
    Returns `file`.

    trt-build is the subject, and each package lists its dependencies. Raises EnvironmentProblem
    without cyclonedx-python-lib, PublishBlocked if the file cannot be written.
    """
    try:
        from cyclonedx.output.json import JsonV1Dot6
    except ImportError as error:
        raise EnvironmentProblem(
            f"--sbom needs the package cyclonedx-python-lib: {error}",
            fix="pip install 'trt-build[sbom]'",
        ) from error
    text = JsonV1Dot6(_bom()).output_as_string(indent=2)
    problem = "the bill of materials was not written"
    with file_system_errors(problem, file, kind=PublishBlocked):
        files.write_text(file, text + "\n")
    return file


def _bom() -> Bom:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType

    trt_build = Component(
        name="trt-build",
        version=__version__,
        type=ComponentType.APPLICATION,
        bom_ref="trt-build",
    )
    distributions = _distributions()
    components = {
        name: _component(name, distribution)
        for name, distribution in sorted(distributions.items())
    }
    bom = Bom(components=components.values())
    bom.metadata.component = trt_build
    for name, distribution in distributions.items():
        needed = _required(distribution)
        bom.register_dependency(
            components[name],
            [
                components[requirement]
                for requirement in needed
                if requirement in components
            ],
        )
    bom.register_dependency(trt_build, components.values())
    return bom


def _distributions() -> dict[str, metadata.Distribution]:
    """The other packages of this environment, by canonical name."""
    distributions = {
        _canonical(distribution.name): distribution
        for distribution in metadata.distributions()
    }
    distributions.pop("trt-build", None)
    return distributions


def _component(name: str, distribution: metadata.Distribution) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    version = distribution.version
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}@{version}",
        purl=PackageURL(type="pypi", name=name, version=version),
        description=distribution.metadata["Summary"],
    )


def _required(distribution: metadata.Distribution) -> Iterable[str]:
    """The packages that a distribution requires in this environment, without extras."""
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in distribution.requires or ()]
    return sorted(
        {
            _canonical(requirement.name)
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        }
    )


def _canonical(name: str) -> str:
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))
