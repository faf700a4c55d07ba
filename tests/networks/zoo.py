"""Runs every network and writes docs/networks.md and docs/export-networks.md.

    python -m tests.networks.zoo                      every network, each in a process of its own
    python -m tests.networks.zoo "ResNet-50" --modes traced
    python -m tests.networks.zoo --times              conversion times of both formats only

Results are kept in docs/networks.json, so that a run of some networks updates their rows only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.networks import ways

ROOT = Path(__file__).resolve().parents[2]
TABLE, STORE = ROOT / "docs/networks.md", ROOT / "docs/networks.json"
WAYS = ROOT / "docs/export-networks.md"
MODES = ["scripted", "traced", "exported"]
LIMIT = 1e-4
"""The allowed error relative to the largest output: a hundred layers with sums of thousands of
products, each off by a few ulp.
"""
HEAD = """# Networks

Written by `python -m tests.networks.zoo`. Every network is converted whole, without fallback, in
float32 with random weights, from scripted or traced TorchScript, and from the program of
`torch.export`. The named axes are dynamic. The batch norms have the running statistics of one
batch, as after training. [Networks from both formats](export-networks.md) compares exported
programs with traced modules.

The network is evaluated on the CPU with TensorRT's documented semantics and compared with torch at
three shapes. Then the plan is compiled. The error is the largest difference, relative to the
largest magnitude of that output, over all shapes. An error of up to {limit:g} passes.

In rows with `float32 itself`, random weights amplify rounding. torch in float32 then differs from
torch in float64 by the figure shown, and the network's error is at most four times that.

| network | from | dynamic axes | layers | convert (s) | compile (s) | error | result |
| --- | --- | --- | ---: | ---: | ---: | ---: | --- |
"""


def networks() -> dict[str, Any]:
    """The published networks, then the small ones of other families."""
    from tests.networks import published, small

    return published.NETWORKS | {
        f"{name} (small)": network for name, network in small.NETWORKS.items()
    }


def _head(name: str, mode: str) -> dict[str, Any]:
    """The fields of a row before anything is measured."""
    axes = sorted(
        {a for named in networks()[name].axes.values() for a in named.values()}
    )
    return {"network": name, "mode": mode, "axes": axes}


def run_one(name: str, mode: str) -> dict[str, Any]:
    """Measure one row. An exception becomes its result."""
    from tests.networks.comparing import NotExported, measure, own_error

    warnings.simplefilter("ignore")
    network = networks()[name]
    row = _head(name, mode)
    try:
        measured = measure(network, mode)
    except NotExported as error:
        return row | {"result": f"not exported: {error}"[:300]}
    except Exception as error:
        words = str(error).strip().splitlines() or [""]
        reason = next(
            (line.split("why:")[1].strip() for line in words if "why:" in line),
            words[0],
        )
        schema = next(
            (
                line.split("(")[0].strip()
                for line in words
                if line.strip().startswith("aten::")
            ),
            "",
        )
        return row | {"result": f"{type(error).__name__}: {schema} {reason}"[:300]}
    largest = max(measured.errors)
    own = own_error(network) if largest > LIMIT else 0.0
    verdict = (
        "passed"
        if largest <= LIMIT
        else f"float32 itself: {own:.1e}"
        if largest <= 4 * own
        else "another answer"
    )
    return row | {
        "layers": measured.layers,
        "convert": measured.convert_seconds,
        "build": measured.build_seconds,
        "error": largest,
        "result": verdict,
        **measured.beside,
    }


def times_of(name: str) -> dict[str, Any]:
    """The conversion times of a network's program and trace."""
    from tests.networks.comparing import conversion_times, eager_of, exported_of

    warnings.simplefilter("ignore")
    network = networks()[name]
    return conversion_times(network, exported_of(network, eager_of(network)))


def kept() -> dict[str, Any]:
    """The rows that were measured last, by network and mode."""
    return dict(json.loads(STORE.read_text())) if STORE.exists() else {}


def write(rows: dict[str, Any]) -> None:
    """Write the stored rows and the pages."""
    STORE.write_text(json.dumps(rows, indent=1) + "\n")
    ordered = sorted(rows.values(), key=_order)
    lines = [_line(row) for row in ordered]
    TABLE.write_text(HEAD.format(limit=LIMIT) + "\n".join(lines) + "\n")
    WAYS.write_text(ways_page(ordered))


def ways_page(rows: list[dict[str, Any]]) -> str:
    """The page docs/export-networks.md from these rows."""
    unscriptable = frozenset(
        name for name, network in networks().items() if network.unscriptable
    )
    return ways.text(sorted(rows, key=_order), unscriptable)


def _order(row: dict[str, Any]) -> tuple[int, str]:
    names = list(networks())
    return (
        names.index(row["network"]) if row["network"] in names else len(names),
        row["mode"],
    )


def _line(row: dict[str, Any]) -> str:
    figures = [
        row.get("layers", ""),
        *(f"{row[k]:.1f}" if k in row else "" for k in ("convert", "build")),
    ]
    error = f"{row['error']:.1e}" if "error" in row else ""
    cells = [
        row["network"],
        row["mode"],
        ", ".join(row["axes"]),
        *figures,
        error,
        row["result"].replace("|", "/"),
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="networks (default: all)")
    parser.add_argument(
        "--modes", nargs="*", choices=MODES, default=MODES, help="how the file is made"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds for one network"
    )
    parser.add_argument(
        "--one",
        action="store_true",
        help="print one network's row as JSON (used by the others)",
    )
    parser.add_argument(
        "--times",
        action="store_true",
        help="measure only the conversion times of exported rows",
    )
    options = parser.parse_args()
    if options.one:
        name, mode = options.names[0], options.modes[0]
        print(json.dumps(times_of(name) if options.times else run_one(name, mode)))
        return
    rows = kept()
    if options.times:
        _measure_times(rows, options.names, options.timeout)
        return
    for name, network in networks().items():
        for mode in options.modes:
            if options.names and name not in options.names:
                continue
            refused = mode == "scripted" and network.unscriptable
            row = (
                {**_head(name, mode), "result": f"not scriptable: {refused}"}
                if refused
                else None
            )
            row = row or _apart(name, mode, options.timeout)
            rows[f"{name}/{mode}"] = row
            print(_line(row), flush=True)
            write(rows)


def _measure_times(rows: dict[str, Any], names: list[str], timeout: float) -> None:
    """Update the times of the rows of programs that convert."""
    for row in rows.values():
        name = row["network"]
        if (
            row["mode"] != "exported"
            or "cpu" not in row
            or (names and name not in names)
        ):
            continue
        found = _apart(name, "exported", timeout, "--times")
        if "cpu" in found:
            row.update(found)
            write(rows)
        print(name, found, flush=True)


def _apart(name: str, mode: str, timeout: float, *options: str) -> dict[str, Any]:
    """Measure the row in a separate process: a crash or hang affects only the result of this
    network.
    """
    command = [
        sys.executable,
        "-m",
        "tests.networks.zoo",
        name,
        "--modes",
        mode,
        "--one",
        *options,
    ]
    failed = _head(name, mode)
    try:
        process = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return failed | {"result": f"not done within {timeout:g} s"}
    if process.returncode:
        return failed | {
            "result": (
                f"ended with {process.returncode}:"
                f" {(process.stderr.strip().splitlines() or [''])[-1][:200]}"
            )
        }
    row: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return row


if __name__ == "__main__":
    main()
