"""Reads tritonserver's log: which models failed, the reason, and a fix."""

from __future__ import annotations

import re
from dataclasses import dataclass

_START = re.compile(
    r"^(?:[IWEF]\d{4} \d\d:\d\d:\d+\.\d+ \d+ \S+\] |\[libprotobuf \w+ \S+\] )",
    re.MULTILINE,
)
_PARSE = re.compile(r"^Error parsing text-format \S+: (?P<reason>.*)$", re.DOTALL)
_LOAD = re.compile(
    r"^\"?failed to load '(?P<model>[^']+)' version (?P<version>\d+): (?P<reason>.*?)\"?$",
    re.DOTALL,
)
_POLL = re.compile(
    r"^\"?Poll failed for model directory '(?P<model>[^']+)': (?P<reason>.*?)\"?$",
    re.DOTALL,
)
_NONE = re.compile(
    r"^\"?failed to load model '(?P<model>[^']+)': (?P<reason>.*?)\"?$", re.DOTALL
)
_STEPS = re.compile(
    r"^\"?Invalid argument: (?P<reason>ensemble (?P<model>\S+) contains .*?)\"?$",
    re.DOTALL,
)
_LOADING = re.compile(r"^\"?loading: (?P<model>.+):(?P<version>\d+)\"?$")
_LOADED = re.compile(r"^\"?successfully loaded '(?P<model>[^']+)'\"?$")
_FATAL = re.compile(
    r"^\"?(?P<reason>[Ff]ailed to start .*|failed to .*listen.*|.*failed to load all models.*)\"?$"
)

HINTS = (
    (
        "No module named 'torch'",
        "the Python that tritonserver finds first has no torch: install trt-build into it",
    ),
    (
        "unable to find backend library for backend 'tensorrt'",
        "this tritonserver has no TensorRT backend: use NVIDIA's image or --serve-as python",
    ),
    ("no GPUs are available", "use a host with a GPU, or build with --serve-as python"),
    (
        "not compatible with this version of TensorRT",
        "build again with this server's TensorRT, or serve with the image named in .env",
    ),
    (
        "generated on an incompatible device",
        "build again on this GPU, or serve on a GPU of the kind it was built for",
    ),
    (
        "models that are not available",
        "the folder of a step is missing: publish the ensemble again with trt-build repo",
    ),
    (
        "at least one version must be available",
        "the folder of the version is missing: publish the model again with trt-build repo",
    ),
    (
        "triton_python_backend_stub",
        "the Python backend's stub did not start: run `trt-build doctor`",
    ),
    ("CUDA out of memory", "use fewer instances or a smaller profile"),
)


@dataclass(frozen=True)
class Failure:
    """A model that did not load, and the reason in the log."""

    model: str
    reason: str

    @property
    def hint(self) -> str | None:
        """The fix for a known reason."""
        return next((hint for text, hint in HINTS if text in self.reason), None)

    def __str__(self) -> str:
        hint = f"\n    fix: {self.hint}" if self.hint else ""
        return f"model {self.model!r}: {self.reason}{hint}"


def entries(text: str) -> list[str]:
    """The log's messages without their prefix; one may span several lines."""
    starts = list(_START.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return [
        text[start.end() : end].rstrip()
        for start, end in zip(starts, ends, strict=False)
    ]


def _failure(entry: str) -> re.Match[str] | None:
    """The match of the first pattern for a model that failed, with `model` and `reason`."""
    for pattern in (_LOAD, _POLL, _NONE, _STEPS):
        match = pattern.match(entry)
        if match:
            return match
    return None


def failures(text: str) -> tuple[Failure, ...]:
    """Every model that could not be read or loaded, with its last reason."""
    reasons: dict[str, str] = {}
    parse_error = ""
    for entry in entries(text):
        match = _failure(entry)
        if match:
            reasons[match["model"]] = f"{_tidy(match['reason'])}{parse_error}"
        # The parser logs line and column just before the server logs the file.
        parsed = _PARSE.match(entry)
        parse_error = ""
        if parsed:
            parse_error = f": {_tidy(parsed['reason'])}"
    return tuple(Failure(model, reason) for model, reason in reasons.items())


def unfinished(text: str) -> tuple[str, ...]:
    """Models that started to load and neither finished nor failed."""
    began = _models(_LOADING, text)
    ended = _models(_LOADED, text)
    failed = {failure.model for failure in failures(text)}
    return tuple(model for model in began if model not in ended and model not in failed)


def fatal(text: str) -> str | None:
    """The message with which the whole server stopped, if it is known."""
    matches = (_FATAL.match(entry) for entry in entries(text))
    return next((_tidy(match["reason"]) for match in matches if match), None)


def tail(text: str) -> str:
    """The last 15 lines of the log."""
    return "\n".join(text.splitlines()[-15:])


def _models(pattern: re.Pattern[str], text: str) -> list[str]:
    # A crash prints its reason directly below the last entry.
    first_lines = (entry.partition("\n")[0] for entry in entries(text))
    return [match["model"] for match in map(pattern.match, first_lines) if match]


def _tidy(reason: str) -> str:
    return reason.replace("\\n", "\n").strip().strip('"')
