"""torch's example programs of torch.export, each from the module to a network."""

from __future__ import annotations

import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import builder
from builder import frontends
from builder.errors import TrtBuildError
from tests.conversion.harness import carried


@dataclass(frozen=True)
class Row:
    """One example with its verdict, a key of MEANINGS, and the reason."""

    name: str
    verdict: str
    reason: str = ""


def names() -> list[str]:
    """All examples."""
    return sorted(_examples())


def _examples() -> dict[str, Any]:
    from torch._export.db.examples import all_examples

    found: dict[str, Any] = all_examples()
    return found


def run(name: str) -> Row:
    """Export, save, load, lower and convert an example, and compare its answers. Raises
    AssertionError for another answer, and what is no TrtBuildError.
    """
    example = _examples()[name]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        file = Path(folder) / "example.pt2"
        try:
            program = torch.export.export(
                example.model.eval(),
                example.example_args,
                example.example_kwargs,
                dynamic_shapes=example.dynamic_shapes,
                strict=True,
            )
            torch.export.save(program, file)
        except Exception as error:  # torch raises errors of many classes
            return Row(name, "not exported", _short(error))
        return _loaded(name, example, file)


def _loaded(name: str, example: Any, file: Path) -> Row:
    try:
        module = frontends.load(file)
        assert isinstance(module, frontends.ExportedModule)
        specs = module.axes.specs()
        lowered = builder.lower(module, specs=specs)
        for args in filter(None, [example.example_args, example.extra_args]):
            kwargs = example.example_kwargs
            flat = module.flat(args, kwargs)
            wanted = _flat(example.model(*_copied(args), **kwargs))
            _compare(lowered.run(*_copied(flat)), wanted)
        conversion = builder.convert(module, specs)
    except builder.UnsupportedOperators as error:
        return Row(name, "torch", error.operators[0].reason)
    except builder.errors.ConversionError as error:
        return Row(name, "torch", _short(error))
    except TrtBuildError as error:
        return Row(name, "refused", _short(error))
    flat = module.flat(example.example_args, example.example_kwargs)
    wanted = _flat(
        example.model(*_copied(example.example_args), **example.example_kwargs)
    )
    outputs = builder.reference.run(conversion, flat)
    _compare(outputs, [tensor.to(carried(tensor.dtype)) for tensor in wanted])
    return Row(name, "converted")


def _copied(args: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.clone, args)


def _flat(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [torch.as_tensor(leaf) for leaf in leaves if leaf is not None]


def _compare(outputs: Any, wanted: Any) -> None:
    for one, other in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(one, other, check_dtype=False)


def _short(error: Exception) -> str:
    """The first line of a message, without what differs from run to run."""
    text = error.message if isinstance(error, TrtBuildError) else str(error)
    line = (text.strip().splitlines() or [type(error).__name__])[0]
    line = re.sub(r"0x[0-9a-f]+", "0x...", re.sub(r"/[\w./\-]+/", "", line))
    return line.replace("|", "/")[:140].rstrip()
