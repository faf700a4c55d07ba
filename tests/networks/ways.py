"""Write docs/export-networks.md, which compares exported programs with traced TorchScript, from the
rows of tests.networks.zoo.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tests.networks.comparing import CALLS

Row = dict[str, Any]

HEAD = """# Networks from both formats

Written by `python -m tests.networks.zoo --modes exported`. Every network of
[networks.md](networks.md) is exported with its dynamic axes, and converted whole, without fallback.
[Exported programs](export.md) describes the conversion.

- Outputs are compared as in [networks.md](networks.md): at three shapes, with an error of up to
  0.0001 of the largest magnitude. That page also explains `float32 itself`.
- *layers* are those of the exported program, *traced* those of the traced module.
- Seconds are CPU time of `builder.convert`, the minimum of ten calls after a first one. Both
  formats were converted alternately in one process (`--times` measures times alone). The time of an
  exported program contains writing its graph; a traced module has one already.
"""
WHOLE = ("passed", "float32 itself")


def text(rows: Sequence[Row], unscriptable: frozenset[str]) -> str:
    """The page. `unscriptable` has the networks that torch.jit.script refuses."""
    rows = [row for row in rows if row["mode"] == "exported"]
    parts = [HEAD, *_counts(rows, unscriptable), "", *_table(rows, unscriptable)]
    refused = [row for row in rows if not _whole(row)]
    if refused:
        parts += ["\n## Not exported\n", "Reasons are those of torch.\n"]
        parts += [
            f"- {row['network']}: {row['result'].partition(': ')[2]}" for row in refused
        ]
    return "\n".join(parts) + "\n"


def _whole(row: Row) -> bool:
    return bool(row["result"].startswith(WHOLE))


def _counts(rows: Sequence[Row], unscriptable: frozenset[str]) -> Iterator[str]:
    whole = [row for row in rows if _whole(row)]
    ratios = [row["cpu"] / row["traced_cpu"] for row in whole]
    fewer = sum(row["layers"] < row["traced_layers"] for row in whole)
    more = sum(row["layers"] > row["traced_layers"] for row in whole)
    yield "| | networks |"
    yield "|---|---:|"
    yield f"| measured | {len(rows)} |"
    yield f"| whole, with answers within the tolerance | {len(whole)} |"
    yield f"| of these not scriptable | {sum(row['network'] in unscriptable for row in whole)} |"
    yield f"| refused by `torch.export` | {sum('not exported' in row['result'] for row in rows)} |"
    yield f"| as many layers as traced | {len(whole) - fewer - more} |"
    yield f"| fewer layers | {fewer} |"
    yield f"| more layers | {more} |"
    yield f"| converted in at most the time of the traced module | {sum(r <= 1 for r in ratios)} |"
    older = sum(row.get("calls") != CALLS for row in whole)
    yield f"| times of two calls only, measured beside more work | {older} |"
    yield ""
    yield (
        f"The time is {statistics.median(ratios):.2f} times that of the traced module in the"
        f" median, {min(ratios):.2f} to {max(ratios):.2f}."
    )


def _table(rows: Sequence[Row], unscriptable: frozenset[str]) -> Iterator[str]:
    columns = ("network", "scriptable", "dynamic axes", "layers", "traced", "time (s)")
    yield "| " + " | ".join([*columns, "traced (s)", "result"]) + " |"
    yield "|---|---|---|---:|---:|---:|---:|---|"
    for row in filter(_whole, rows):
        scriptable = "no" if row["network"] in unscriptable else "yes"
        seconds = f"{row['cpu']:.2f} | {row['traced_cpu']:.2f}"
        yield (
            f"| {row['network']} | {scriptable} | {', '.join(row['axes'])} | {row['layers']} |"
            f" {row['traced_layers']} | {seconds} | {row['result']} |"
        )
