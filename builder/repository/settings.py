"""The settings that build_repository, explain and search_precision share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import ManifestError
from builder.manifest import ModelSpec, TensorSpec
from builder.manifest import load as load_manifests

if TYPE_CHECKING:
    from builder.engine import BuildOptions
    from builder.pipeline import Order


@dataclass(frozen=True)
class Settings:
    """`inputs` (or the arrays of the npz `sample`) stand in for a manifest that is missing;
    `precision`, `state` and what is set of `options` override the manifests'.

    A model that TensorRT runs only in part is served in pieces: `layout` "fused" in one process,
    "ensemble" as a Triton ensemble, "auto" as is cheaper. `torch_steps` says what serves an
    ensemble's torch steps: "python" our runtime, "pytorch" Triton's PyTorch backend, "auto" the
    latter where Triton's own backend serves the engines beside them. Plans are kept in `store` (a
    folder or any URL of fsspec) and taken from there, and with `share` goldens and
    timing caches, too. `plugins` are Python files or modules that are imported before a model is.
    `only` keeps models of these names. A published config that was edited by hand is kept while the
    model is unchanged; where it is to be published anew, `edits` "report" refuses, "keep" carries
    the edit over and "overwrite" drops it. A model replaces one whose clients could not go on with
    it only with `accept_incompatible`. `sign` is a private key (PEM, elliptic curve) that every
    model is signed with.
    """

    serve_as: str = "auto"
    layout: str = "auto"
    torch_steps: str = "auto"
    flavour: str = "auto"
    only: Sequence[str] = ()
    inputs: Sequence[TensorSpec] = ()
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
        """The models; those without a manifest are put into `without`, where it is given and
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
        """An order for each model. Raises EnvironmentProblem where no such flavour is here, and
        UsageError where Triton could not load its plans.
        """
        from builder.engine import BuildOptions, flavour
        from builder.pipeline import Order
        from builder.repository import preflight

        chosen = flavour.select(self.flavour)
        preflight.check_served(self.serve_as, chosen)
        common: dict[str, Any] = {
            "serve_as": self.serve_as,
            "torch_steps": self.torch_steps,
            "flavour": chosen,
            "options": self.options or BuildOptions(),
            "store": str(self.store) if self.store else None,
            "share": self.share,
            "plugins": tuple(self.plugins),
            "edits": self.edits,
            "accept_incompatible": self.accept_incompatible,
        }
        return [Order(spec, out, layout=self._layout(spec), **common, **more) for spec in specs]

    def _layout(self, spec: ModelSpec) -> str:
        """The command's layout, else the manifest's."""
        return spec.layout if self.layout == "auto" else self.layout


def settled(settings: Settings | None, keywords: Mapping[str, Any]) -> Settings:
    """The settings with those of `keywords` over them. Raises TypeError for one that there is
    not.
    """
    return replace(settings or Settings(), **keywords)
