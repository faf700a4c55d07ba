"""Runs torch's own example programs of torch.export and writes docs/export-examples.md.

python -m tests.export                 every example
python -m tests.export cond_operands   some, without writing the page
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.export.examples import Row, names, run

PAGE = Path(__file__).resolve().parents[2] / "docs/export-examples.md"
HEAD = """# Examples of torch.export

Written by `python -m tests.export` with torch {torch}. torch has {count} example programs (`torch/_export/db/examples`), some
of features that `torch.export` does not support. Each is exported, saved, loaded as a `.pt2` file, lowered and converted.
Answers are compared with those of the example, at its inputs and at its second inputs, if it has some.

| verdict | meaning | examples |
| --- | --- | ---: |
{totals}

| example | verdict | reason |
| --- | --- | --- |
{rows}
"""
MEANINGS = {
    "converted": "the whole program is a TensorRT network with equal outputs",
    "torch": "lowered with equal outputs; torch runs what TensorRT does not",
    "refused": "an error of trt-build with a remedy",
    "not exported": "`torch.export.export` or `save` refuses the example",
}


def text(rows: list[Row]) -> str:
    """The page."""
    import torch

    totals = "\n".join(
        f"| {verdict} | {meaning} | {sum(row.verdict == verdict for row in rows)} |"
        for verdict, meaning in MEANINGS.items()
    )
    lines = "\n".join(f"| {row.name} | {row.verdict} | {row.reason} |" for row in rows)
    version = torch.__version__.partition("+")[0]
    return HEAD.format(torch=version, count=len(rows), totals=totals, rows=lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="examples (default: all)")
    chosen = parser.parse_args().names
    rows = []
    for name in chosen or names():
        rows.append(run(name))
        print(f"{name}: {rows[-1].verdict} {rows[-1].reason}", flush=True)
    if not chosen:
        PAGE.write_text(text(rows))


if __name__ == "__main__":
    main()
