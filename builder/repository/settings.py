"""The settings that build_repository, explain and search_precision share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import engine, pipeline
from builder.errors import ManifestError
from builder.manifest import ModelSpec, TensorSpec
from builder.manifest import load as load_manifests
from builder.repository import preflight

if TYPE_CHECKING:
    from builder.engine import BuildOptions
    from builder.pipeline import Order


@dataclass(frozen=True)
class Settings:
    """`inputs` (or the arrays of the npz `sample`) replace a missing manifest. With None, errors
    suggest only a manifest.

    `precision`, `state` and the set `options` override those of the manifests. `layout` is that of
    partitioned models: "fused" in one process, "ensemble" as a Triton ensemble, "auto" the cheaper
    one. `torch_steps` is the backend of an ensemble's torch steps: "python" for the Python runtime,
    "pytorch" for Triton's PyTorch backend, "auto" for the latter if Triton's own backend serves the
    engines. Plans are written to and read from `store` (a folder or a URL of fsspec), and with
    `share` also goldens and timing caches. `plugins` are Python files or modules that are imported
    before a model is. `only` selects models by name. Manual edits of a published config are kept
    while the model is unchanged. If it must be published again, `edits` "report" refuses, "keep"
    carries the edits over and "overwrite" drops them. A model with an incompatible interface
    replaces the published one only with `accept_incompatible`. `sign` is a private key (PEM,
    elliptic curve) that signs every model.
    """

    serve_as: str = "auto"
    layout: str = "auto"
    torch_steps: str = "auto"
    flavor: str = "auto"
    only: Sequence[str] = ()
    inputs: Sequence[TensorSpec] | None = None
    sample: Path | str | None = None
    precision: str | None = None
    state: str | None = None
    options: BuildOptions | None = None
    store: Path | str | None = None
    share: bool = False
    plugins: Sequence[str] = ()
    edits: str = "report"
    accept_incompatible: bool = False
    sign: Path | str | None = None

    def specs(
        self, models: Path | str, without: dict[str, ManifestError] | None = None
    ) -> list[ModelSpec]:
        """The specs of the models. With `without`, models without a manifest are added to it if
        another model has one. Raises ManifestError and UsageError.
        """
        return load_manifests(
            Path(models),
            only=self.only,
            inputs=self.inputs,
            sample=Path(self.sample) if self.sample is not None else None,
            precision=self.precision,
            state=self.state,
            without=without,
        )

    def orders(self, specs: Sequence[ModelSpec], out: Path, **more: Any) -> list[Order]:
        """An order for each model. Raises EnvironmentProblem if the flavor is not installed, and
        UsageError if Triton could not load its plans.
        """

        chosen = engine.flavor.select(self.flavor)
        preflight.check_served(self.serve_as, chosen)
        common: dict[str, Any] = {
            "serve_as": self.serve_as,
            "torch_steps": self.torch_steps,
            "flavor": chosen,
            "options": self.options or engine.BuildOptions(),
            "store": str(self.store) if self.store else None,
            "share": self.share,
            "plugins": tuple(self.plugins),
            "edits": self.edits,
            "accept_incompatible": self.accept_incompatible,
        }
        return [
            pipeline.Order(spec, out, layout=self._layout(spec), **common, **more)
            for spec in specs
        ]

    def _layout(self, spec: ModelSpec) -> str:
        """The command's layout, else the manifest's."""
        return spec.layout if self.layout == "auto" else self.layout


def resolved(settings: Settings | None, keywords: Mapping[str, Any]) -> Settings:
    """The settings with those of `keywords` replaced. Raises TypeError for an unknown keyword."""
    return replace(settings or Settings(), **keywords)
