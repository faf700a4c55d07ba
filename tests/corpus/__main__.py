"""Takes every model of the corpus to a published repository, and writes docs/corpus.md.

    python -m tests.corpus --seconds 3600 --jobs 2      models without a row, until the time is up
    python -m tests.corpus --only "resnet" --again      these models again
    python -m tests.corpus --page                       the page from docs/corpus.json alone

A model is scripted or traced, saved, then checked (`check`) and published (`repo`); `repo` runs
what will be served on every golden before it publishes. A row is kept in docs/corpus.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from tests.corpus.models import corpus
from tests.corpus.page import JSON, write
from tests.corpus.running import Row, first_line, run


def rows(names: list[str], jobs: int, until: float) -> Iterator[Row]:
    """The rows of these models as they end; none starts after `until` (time.monotonic())."""
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), max_tasks_per_child=20
    ) as pool:
        waiting = list(names)
        running: dict[Any, str] = {}
        while running or (waiting and time.monotonic() < until):
            while waiting and len(running) < jobs and time.monotonic() < until:
                name = waiting.pop(0)
                running[pool.submit(run, name)] = name
            done = next(as_completed(running))
            name = running.pop(done)
            try:
                yield done.result()
            except Exception as error:
                yield {
                    "name": name,
                    "verdict": "no endpoint",
                    "reason": first_line(error),
                }
                return  # the pool is broken: the next call goes on


def main() -> int:
    """Run the models, keep their rows, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="a regular expression on names")
    parser.add_argument(
        "--again", action="store_true", help="also models that have a row"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page and run nothing"
    )
    args = parser.parse_args()
    kept: dict[str, Row] = {row["name"]: row for row in _read()}
    until = time.monotonic() + args.seconds
    names = [] if args.page else list(corpus())
    names = [name for name in names if not args.only or re.search(args.only, name)]
    names = [name for name in names if args.again or name not in kept]
    names.sort(
        key=lambda name: name not in kept
    )  # first those whose row may be outdated
    while names and time.monotonic() < until:
        for row in rows(names, args.jobs, until):
            kept[row["name"]] = row
            names.remove(row["name"])
            print(row["name"], row["verdict"], row.get("reason", "")[:100], flush=True)
            JSON.write_text(
                json.dumps(sorted(kept.values(), key=_name), indent=1) + "\n"
            )
    write(sorted(kept.values(), key=_name))
    return 0


def _name(row: Row) -> str:
    return str(row["name"])


def _read() -> list[Row]:
    return json.loads(JSON.read_text()) if JSON.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
