"""Publishes every model of the corpus, and writes docs/corpus.md.

    python -m tests.corpus --seconds 3600 --jobs 2      models without a row, until the time is up
    python -m tests.corpus --only "resnet" --again      these models again
    python -m tests.corpus --page                       only the page from docs/corpus.json

A model is scripted or traced, saved, then checked (`check`) and published (`repo`); `repo` runs
the published files on every golden before it publishes them. A row is kept in docs/corpus.json.
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


def rows(names: list[str], jobs: int, deadline: float) -> Iterator[Row]:
    """The rows of these models as they end; none starts after `deadline` (time.monotonic())."""
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), max_tasks_per_child=20
    ) as pool:
        waiting = list(names)
        running: dict[Any, str] = {}
        while running or (waiting and time.monotonic() < deadline):
            while waiting and len(running) < jobs and time.monotonic() < deadline:
                name = waiting.pop(0)
                running[pool.submit(run, name)] = name
            done = next(as_completed(running))
            name = running.pop(done)
            try:
                yield done.result()
            except Exception as error:
                yield {
                    "name": name,
                    "verdict": "not published",
                    "reason": first_line(error),
                }
                return  # the pool is broken; the next call continues


def main() -> int:
    """Run the models, record their rows, write the page."""
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
    recorded: dict[str, Row] = {row["name"]: row for row in _read()}
    deadline = time.monotonic() + args.seconds
    names = [] if args.page else list(corpus())
    names = [name for name in names if not args.only or re.search(args.only, name)]
    names = [name for name in names if args.again or name not in recorded]
    names.sort(
        key=lambda name: name not in recorded
    )  # first those whose row may be outdated
    while names and time.monotonic() < deadline:
        for row in rows(names, args.jobs, deadline):
            recorded[row["name"]] = row
            names.remove(row["name"])
            print(row["name"], row["verdict"], row.get("reason", "")[:100], flush=True)
            JSON.write_text(
                json.dumps(sorted(recorded.values(), key=_name), indent=1) + "\n"
            )
    write(sorted(recorded.values(), key=_name))
    return 0


def _name(row: Row) -> str:
    return str(row["name"])


def _read() -> list[Row]:
    return json.loads(JSON.read_text()) if JSON.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
