"""Writes the section of docs/performance.md on static profiles and their alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.records import Row
from benchmarks.tables import geometric_mean, table

HEAD = """
## Static profiles and the alternatives, {gpu}

`python -m benchmarks.batch_sizes`, and `python3 -m benchmarks.compiled --mode max-autotune` in a
Python that has triton{dates}. Milliseconds of a call, medians. The rows of torch.compile may be of
another day and host.

| column | meaning |
|---|---|
| one | our plan with one profile, batch 1 to 32, tuned for 8 |
| static | our plan with `batch_sizes: [1, 8, 32]` |
| ONNX | the plan of TensorRT's ONNX parser, with the profiles of *static* |
| graphs | the same calls as CUDA graphs |
| autotune | torch.compile's mode `max-autotune`, which uses CUDA graphs itself |
"""

Times = Mapping[str, float]


def section(rows: Sequence[Row], torch_rows: Sequence[Row]) -> Iterator[str]:
    """Return one table for each GPU. `rows` are those of batch_sizes, `torch_rows` of compiled."""
    for gpu in sorted({str(row["gpu"]) for row in rows}):
        here = [row for row in rows if row["gpu"] == gpu]
        beside = _merged(row for row in torch_rows if row["gpu"] == gpu)
        dates = ", ".join(sorted({str(row["date"]) for row in here}))
        yield HEAD.format(gpu=gpu, dates=f" ({dates})" if dates else "")
        yield from _summary(here, beside)
        columns = (
            *(
                "network",
                "level",
                "batch",
                "one",
                "static",
                "ONNX",
                "eager",
                "TorchScript",
            ),
            *("torch.compile", "graphs: one", "static", "ONNX", "autotune"),
            *("static / one", "static / ONNX", "ours / torch.compile"),
        )
        yield from table(columns, (_cells(row, beside.get(_key(row))) for row in here))
        yield from _failures(here)


def _key(row: Row) -> tuple[str, str, int]:
    return str(row["network"]), str(row["precision"]), int(row["batch"])


def _merged(rows: Iterable[Row]) -> dict[tuple[str, str, int], Row]:
    """The newest time of each mode, for each network, precision and batch size."""
    newest: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        before = newest.get(_key(row), {}).get("milliseconds", {})
        newest[_key(row)] = {**row, "milliseconds": {**before, **row["milliseconds"]}}
    return newest


def _compiled(row: Row | None) -> Times:
    return row["milliseconds"] if row else {}


def ratios(row: Row, compiled: Row | None) -> dict[str, float]:
    """Return the time ratios of the static plan.

    As CUDA graphs, its time is divided by that of `one` and of `onnx`. The static plan, or `one` if
    no static plan was built, is also divided by the fastest torch.compile in comparison. Both times
    of a ratio are measured in the same way (plain calls, or CUDA graphs).
    """
    graphs, plain, beside = row["graphs"], row["milliseconds"], _compiled(compiled)
    static = graphs.get("static")
    by_kind = {
        kind: static / graphs[kind]
        for kind in ("one", "onnx")
        if static and kind in graphs
    }
    mode = "static" if static else "one"
    pairs = [(plain, "compile"), (graphs, "compile, max-autotune")]
    against = [times[mode] / beside[kind] for times, kind in pairs if kind in beside]
    return {**by_kind, **({"compile": max(against)} if against else {})}


def _summary(
    rows: Sequence[Row], beside: Mapping[tuple[str, str, int], Row]
) -> Iterator[str]:
    compared = [(row, ratios(row, beside.get(_key(row)))) for row in rows]
    names = {
        "one": "static / one profile",
        "onnx": "static / ONNX with the same profiles",
        "compile": "ours / torch.compile",
    }
    for kind, title in names.items():
        values = [one[kind] for _, one in compared if kind in one]
        if values:
            above = [
                f"{row['network']} batch {row['batch']} ({one[kind]:.3f})"
                for row, one in compared
                if one.get(kind, 0.0) > 1.0
            ]
            more = (
                f"; above 1.00: {', '.join(above) or 'none'}"
                if kind == "compile"
                else ""
            )
            mean = geometric_mean(values)
            yield f"- {title}, geometric mean of {len(values)} rows: {mean:.3f}{more}."
    yield ""


def _cells(row: Row, compiled: Row | None) -> list[str]:
    plain, graphs, beside = row["milliseconds"], row["graphs"], _compiled(compiled)
    times = [
        plain.get(kind) for kind in ("one", "static", "onnx", "eager", "torchscript")
    ]
    times.append(beside.get("compile"))
    times += [graphs.get(kind) for kind in ("one", "static", "onnx")]
    times.append(beside.get("compile, max-autotune"))
    shown = ratios(row, compiled)
    return [
        str(row["network"]),
        str(row.get("settings", "")).removeprefix("level "),
        str(row["batch"]),
        *("" if value is None else f"{value:.3f}" for value in times),
        *(
            f"{shown[kind]:.3f}" if kind in shown else ""
            for kind in ("one", "onnx", "compile")
        ),
    ]


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    reasons = {
        (row["network"], kind, why)
        for row in rows
        for kind, why in row["failed"].items()
    }
    for network, kind, why in sorted(reasons):
        yield f"\n`{network}` has no time of `{kind}` because of: {why}."
