"""`python -m tests.chaos load|push|reload|limit|kill`: prints its counts as JSON; exit code 1:
some are bad.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import kill, limit, load, page, pushing, reload, streams
from tests.chaos.counts import Results

NOT_RECORDED = ("--record", "--out", "--lines")


def main() -> int:
    """Run the command line."""
    args, began = _asked(), time.monotonic()
    if args.command == "sum" or getattr(args, "streams", 0):
        return _streams(args, began)
    with tempfile.TemporaryDirectory() as name:
        counts = RUNS[args.command](args, Path(name))
    record = counts.as_dict()
    record["wall_seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(record, indent=2))
    if args.record:
        page.record(_command(), record)
    return int(counts.bad > 0)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--record", action="store_true", help="keep the counts in docs/chaos.json"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    loading = commands.add_parser("load", help="republish an ensemble under load")
    loading.add_argument("--mode", choices=("poll", "explicit"), default="poll")
    loading.add_argument("--publications", type=int, default=20)
    loading.add_argument("--clients", type=int, default=6)
    _add_push(
        commands.add_parser("push", help="push models, some of them bad, under load")
    )
    summing = commands.add_parser("sum", help="sum the records of `push --streams`")
    summing.add_argument("--out", type=Path, required=True)
    summing.add_argument(
        "--command-line", default="push", help="what to record them as"
    )
    reloading = commands.add_parser(
        "reload", help="load and unload a trivial model, without us"
    )
    reloading.add_argument("--mode", choices=pushing.MODES, default="explicit")
    reloading.add_argument("--loads", type=int, default=400)
    reloading.add_argument(
        "--new-names", action="store_true", help="another name each time"
    )
    reloading.add_argument(
        "--names", type=int, default=1, help="names that are used in turn"
    )
    reloading.add_argument(
        "--at-once", action="store_true", help="do not wait for unloading"
    )
    limiting = commands.add_parser(
        "limit", help="load a server at its limit, and watch its memory"
    )
    limiting.add_argument("--minutes", type=float, default=10.0)
    limiting.add_argument("--out", type=Path, help="a folder for the samples")
    killing = commands.add_parser("kill", help="kill publications at every point")
    killing.add_argument("--no-exchange", action="store_true")
    killing.add_argument("--stride", type=int, default=1, help="every n-th point")
    killing.add_argument(
        "--serve", action="store_true", help="serve every distinct state"
    )
    killing.add_argument("--change", choices=tuple(kill.CHANGES), default="publish")
    return parser.parse_args()


def _add_push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", choices=pushing.MODES, default="explicit")
    parser.add_argument("--pushes", type=int, default=20, help="of each stream")
    parser.add_argument("--clients", type=int, default=16, help="of each stream")
    parser.add_argument(
        "--pause", type=float, default=0.05, help="between a client's requests"
    )
    parser.add_argument("--plans", action="store_true", help="models with engines")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="no push begins later"
    )
    parser.add_argument("--lines", type=Path, help="a file for a record of each push")
    parser.add_argument(
        "--streams", type=int, default=0, help="side by side, in both modes"
    )
    parser.add_argument(
        "--out", type=Path, help="the folder for the records of --streams"
    )


def _command() -> str:
    words = [
        word for word in sys.argv[1:] if word.partition("=")[0] not in NOT_RECORDED
    ]
    return " ".join(words)


def _streams(args: argparse.Namespace, began: float) -> int:
    """Run several processes, or read the records of several. Returns one row for each mode."""
    if args.command == "sum":
        found, command = streams.read(args.out), args.command_line
    else:
        words = [
            f"--{name}={getattr(args, name)}" for name in ("pushes", "clients", "pause")
        ]
        words += [f"--minutes={args.minutes}", *(["--plans"] if args.plans else [])]
        out = args.out or Path(tempfile.mkdtemp(prefix="trt-build-chaos-"))
        found, command = (
            streams.run(out, args.streams, words, args.minutes * 60),
            _command(),
        )
    for mode, counts in found.items():
        took = counts.seconds if args.command == "sum" else time.monotonic() - began
        record = {**counts.as_dict(), "wall_seconds": round(took, 1)}
        print(json.dumps(record))
        if args.record:
            page.record(f"{command} (mode {mode})", record)
    return int(not found or any(counts.bad for counts in found.values()))


def _load(args: argparse.Namespace, folder: Path) -> Results:
    return load.run(
        folder / "repository",
        args.mode,
        publications=args.publications,
        clients=args.clients,
    )


def _push(args: argparse.Namespace, folder: Path) -> Results:
    return pushing.run(
        folder,
        args.mode,
        pushes=args.pushes,
        clients=args.clients,
        pause=args.pause,
        plans=args.plans,
        seconds=args.minutes * 60,
        out=args.lines,
    )


def _reload(args: argparse.Namespace, folder: Path) -> Results:
    return reload.run(
        folder,
        args.mode,
        args.loads,
        new_names=args.new_names,
        names=args.names,
        at_once=args.at_once,
    )


def _limit(args: argparse.Namespace, folder: Path) -> Results:
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    out = args.out / "limit.jsonl" if args.out else None
    return limit.run(folder, args.minutes, out)


def _kill(args: argparse.Namespace, folder: Path) -> Results:
    return kill.run(
        folder,
        exchange=not args.no_exchange,
        stride=args.stride,
        serve_states=args.serve,
        change=args.change,
    )


RUNS = {"load": _load, "push": _push, "reload": _reload, "limit": _limit, "kill": _kill}


if __name__ == "__main__":
    sys.exit(main())
