"""`python -m tests.chaos load|push|kill`: prints its counts as JSON; exit code 1: some are bad."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import kill, load, page, pushing


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    loading = commands.add_parser("load", help="republish an ensemble under load")
    loading.add_argument("--mode", choices=("poll", "explicit"), default="poll")
    loading.add_argument("--publications", type=int, default=20)
    loading.add_argument("--clients", type=int, default=6)
    pushes = commands.add_parser("push", help="push models, some of them bad, under load")
    pushes.add_argument("--mode", choices=("poll", "explicit"), default="explicit")
    pushes.add_argument("--pushes", type=int, default=20)
    pushes.add_argument("--clients", type=int, default=16)
    pushes.add_argument("--pause", type=float, default=0.05, help="between a client's requests")
    pushes.add_argument("--plans", action="store_true", help="models with engines")
    killing = commands.add_parser("kill", help="kill publications at every point")
    killing.add_argument("--no-exchange", action="store_true")
    killing.add_argument("--stride", type=int, default=1, help="every n-th point")
    killing.add_argument("--serve", action="store_true", help="serve every distinct state")
    killing.add_argument("--change", choices=tuple(kill.CHANGES), default="publish")
    parser.add_argument("--record", action="store_true", help="keep the counts in docs/chaos.json")
    asked, began = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.command == "load":
            counts = load.run(
                folder / "repository",
                asked.mode,
                publications=asked.publications,
                clients=asked.clients,
            )
            bad = counts.bad
            said = counts.as_dict()
        elif asked.command == "push":
            pushed = pushing.run(
                folder,
                asked.mode,
                pushes=asked.pushes,
                clients=asked.clients,
                pause=asked.pause,
                plans=asked.plans,
            )
            bad = pushed.bad
            said = pushed.as_dict()
        else:
            killed = kill.run(
                folder,
                exchange=not asked.no_exchange,
                stride=asked.stride,
                serve_states=asked.serve,
                change=asked.change,
            )
            bad = killed.torn + killed.served_wrong + killed.not_repaired
            said = killed.as_dict()
    said["wall_seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(said, indent=2))
    if asked.record:
        words = [word for word in sys.argv[1:] if word != "--record"]
        page.record(" ".join(words), said)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
