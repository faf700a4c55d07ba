"""Serves variants of one model under load, and finds the best configuration."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from builder import manifest, serving, triton
from builder.bench import (
    LONGEST,
    Endpoint,
    LevelResult,
    Load,
    Options,
    Sequences,
    host,
    long_enough,
    requests,
    rows,
    session,
)
from builder.engine import gpu
from builder.errors import EnvironmentProblem, ServerError, TrtBuildError, UsageError
from builder.manifest import ModelSpec
from builder.parity import PublishedModel, served
from builder.progress import Progress, silent
from builder.repository import KeptArtifacts, ModelResult, Settings, build_variant
from builder.serving import control
from builder.tuning import queueing
from builder.tuning.goal import Goal
from builder.tuning.search import DEFAULT, Trial, search
from builder.tuning.space import (
    DELAY,
    MAX_BATCH,
    PREFERRED,
    RUNTIME,
    TORCH,
    Configuration,
    Facts,
    Values,
    changes,
    key,
    space,
)

BETTER, SAME, UNMET = "better", "no difference", "limit not met"
"""The verdicts on the best configuration compared with the default: better beyond the noise, not
better, or no configuration is within the limit.
"""
SMALLEST_GAIN = 1.05
"""The smallest gain with which a configuration is written into a manifest."""
FLAT = 1.02
"""A closed loop ends after two consecutive levels with a smaller gain than this."""
PROPOSED = 2
"""The number of configurations that the queueing model proposes."""
FINALISTS = 2
"""The number of configurations that are measured again together with the default."""
GPU_SLOTS = 2
"""The number of instances that compute on one GPU at the same time, for the queueing model."""
MEAN_SHARE = 0.5
"""The share of a percentile's limit that the queueing model uses, because it computes mean
latencies.
"""


@dataclass(frozen=True)
class TuneOptions:
    """Tuning options: see `trt-build tune --help`.

    `seconds` is the time of each load level, `trials` the number of different configurations, and
    `confirmations` how often the best ones and the default are measured again.
    """

    goal: Goal
    values: Values = field(default_factory=Values)
    trials: int = 20
    confirmations: int = 2
    seconds: float = 3.0
    concurrency: Sequence[int] = (1, 2, 4, 8, 16, 32)
    protocol: str = "grpc"
    memory: str = "none"
    file: Path | None = None
    goldens: Sequence[str] = ()
    timeout: float = 60.0
    allow_torch: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Tuned:
    """The result for one model.

    `best` is the configuration to serve (the default unless `verdict` is BETTER), `changes` are its
    manifest keys. `before` and `after` are the mean scores of the default and of the best in the
    confirmation: requests per second, or milliseconds if the goal has a rate. `torch_faster`
    reports that torch would be faster than the plan.
    """

    name: str
    goal: str
    configurations: int
    verdict: str
    default: Configuration
    best: Configuration
    changes: Mapping[str, Any]
    before: float | None
    after: float | None
    gain: float | None
    trials: tuple[Trial, ...]
    confirmed: tuple[Trial, ...]
    fixed: Mapping[str, str]
    torch_faster: str | None = None
    requests: tuple[str, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def tune(
    spec: ModelSpec,
    options: TuneOptions,
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> Tuned:
    """Build variants of the model of `spec`, serve each with a separate tritonserver in explicit
    mode, and measure it under the same load.

    Only temporary files are written. `on_trial` is called after each measurement.

    Raises UsageError for a model without a manifest and for invalid values, EnvironmentProblem if
    no server or no Optuna is installed, and the error of the default configuration if it cannot be
    built or served.
    """
    if spec.manifest is None:
        raise UsageError(
            f"model {spec.name!r} has no manifest that a configuration could be written into",
            fix=f"write one with trt-build init {spec.path}",
        )
    with ExitStack() as stack:
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="trt-build-tune-")
        )
        repository = Path(name) / "repository"
        repository.mkdir()
        run = _Run(
            spec, options, settings or Settings(), repository, progress, on_trial
        )
        run.prepare()
        flags = {
            "explicit": True,
            "client_shared_memory": options.memory != "none",
            **serving.FREE_PORTS,
        }
        run.connect(stack, stack.enter_context(serving.serve(repository, **flags)))
        return run.tuned()


class _Run:
    """The tuning of one model."""

    def __init__(
        self,
        spec: ModelSpec,
        options: TuneOptions,
        settings: Settings,
        repository: Path,
        progress: Progress | None,
        on_trial: Callable[[Trial], None] | None,
    ) -> None:
        self.spec = spec
        self.options = options
        self.goal = options.goal
        self.settings = replace(settings, accept_incompatible=True, edits="overwrite")
        self.repository = repository
        self.folder = repository / spec.name
        self.progress = progress or silent
        self.on_trial = on_trial or (lambda trial: None)
        self.kept_artifacts = KeptArtifacts(repository.with_name("kept"))
        self.began = time.monotonic()
        self.count = 0
        self.seconds: dict[str, float] = {}
        self.default_levels: list[LevelResult] = []

    def prepare(self) -> None:
        """Build the default configuration, which determines the possible changes and the
        requests.
        """
        with self._phase("prepare"):
            result = self._built(self.spec)
        model = served.read(self.folder)
        self.space = space(
            self.spec,
            _facts(model, result),
            self.options.values,
            cores=os.cpu_count() or 1,
            limit_ms=self.goal.ms,
        )
        self.sequences = self._sequences(model)

    def _built(self, model: ModelSpec) -> ModelResult:
        """Publish a variant. Raises the error of its build."""
        result = build_variant(
            model, self.repository, self.settings, kept_artifacts=self.kept_artifacts
        )
        if result.error is not None:
            raise result.error
        return result

    def _sequences(self, model: PublishedModel) -> Sequences:
        """The requests for each variant: those that the smallest maximum batch allows."""
        sequences = requests(model, self.options.file, self.options.goldens)
        sizes = next(
            (
                dimension.values
                for dimension in self.space.dimensions
                if dimension.name == MAX_BATCH
            ),
            None,
        )
        if sizes is None:
            return sequences
        smallest = min(map(int, sizes))
        fitting = tuple(
            sequence
            for sequence in sequences
            if all(rows(golden, smallest) <= smallest for golden in sequence)
        )
        if not fitting:
            raise UsageError(
                f"--max-batch {smallest}: each request of model {self.spec.name!r} has more rows",
                fix="use a larger --max-batch or smaller --requests",
            )
        return fitting

    def connect(self, stack: ExitStack, server: serving.Server) -> None:
        """Use this server until the stack is closed."""
        self.endpoint = Endpoint(server.http_url, server.grpc_url, server.metrics_url)
        self.control = stack.enter_context(
            control.connected(
                server.http_url, serving.PLAIN, control.LOAD_TIMEOUT, server.grpc_url
            )
        )

    def tuned(self) -> Tuned:
        """Search, measure the best ones again, and compare."""
        trials = search(
            self.space,
            self._measure,
            trials=self.options.trials,
            first=self._proposed,
            seed=self.options.seed,
        )
        if not self.default_levels:
            raise ServerError(
                f"the default configuration was not measured: {trials[0].problem}"
            )
        finalists = self._finalists(trials)
        confirmed = []
        rounds = self.options.confirmations if len(finalists) > 1 else 0
        for _ in range(rounds):
            for configuration in finalists:
                confirmed.append(self._measure(configuration, "confirmation"))
        return self._result(trials, finalists, confirmed)

    def _measure(self, configuration: Configuration, proposed_by: str) -> Trial:
        """Publish the variant, load it, and measure it under load."""
        self.count += 1
        self.progress(self.spec.name, f"trial {self.count} ({proposed_by})")
        levels: list[LevelResult] = []
        problem = None
        try:
            self._publish(configuration)
            with self._phase("measure"):
                levels.extend(self._levels())
        except EnvironmentProblem:
            raise
        except TrtBuildError as error:
            problem = error.message
        if proposed_by == DEFAULT:
            self.default_levels = levels
        best = self.goal.best(levels) or (levels[0] if levels else None)
        score = self.goal.score(levels)
        if score is None and problem is None:
            problem = self._reason_without_score(levels)
        figures = _figures(best)
        seconds = self.seconds
        self.seconds = {}
        trial = Trial(configuration, proposed_by, score, problem, figures, seconds)
        self.on_trial(trial)
        return trial

    def _publish(self, configuration: Configuration) -> None:
        values = changes(self.spec, self.space.default, configuration)
        model = manifest.variant(self.spec, values) if values else self.spec
        with self._phase("prepare"):
            self._built(model)
        with self._phase("load"):
            self.control.load(self.folder)
            self.control.unload(self.control.former_steps(self.folder))

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the time of the next trial."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = self.seconds.get(name, 0.0) + time.monotonic() - began
            self.seconds[name] = round(took, 2)

    def _levels(self) -> Iterator[LevelResult]:
        """Run the rate of the goal, or a closed loop with an increasing number of requests in
        flight.
        """
        options = Options(
            protocols=[self.options.protocol],
            memories=[self.options.memory],
            timeout=self.options.timeout,
            seed=self.options.seed,
            sequences=self.sequences,
        )
        with session(self.folder, self.endpoint, options) as measure:
            if self.goal.rate is not None:
                yield self._enough(measure, Load(rate=self.goal.rate))
                return
            best = 0.0
            flat = 0
            for concurrency in self.options.concurrency:
                level = self._enough(measure, Load(concurrency))
                yield level
                flat = flat + 1 if level.throughput.value < FLAT * best else 0
                if flat == 2 or not self.goal.holds(level):
                    return
                best = max(best, level.throughput.value)

    def _enough(
        self, measure: Callable[[Load, float], LevelResult], load: Load
    ) -> LevelResult:
        """Run one level for as long as the percentile of the goal requires."""
        seconds = self.options.seconds
        if not self._needs_latency:
            return measure(load, seconds)
        return long_enough(measure, load, seconds, self.goal.percentile)

    @property
    def _needs_latency(self) -> bool:
        return self.goal.ms is not None or self.goal.rate is not None

    def _reason_without_score(self, levels: Sequence[LevelResult]) -> str:
        first = levels[0]
        for kind, count in first.errors.items():
            return f"{count} errors {kind}: {first.examples.get(kind, '')}"
        latency = self.goal.latency(first)
        if latency is None:
            return f"too few requests in {LONGEST:g} s for {self.goal.name}"
        return f"{self.goal.name} is {latency:.2f} ms at {first.load}"

    def _proposed(self, default: Trial) -> list[Configuration]:
        """The best configurations by the queueing model.

        Of those that differ only in queue delay and preferred sizes, the best one is included.
        """
        batches = [
            (int(size), level.server["batch_ms"][size] / 1e3, count)
            for level in self.default_levels
            for size, count in level.server["batch_sizes"].items()
        ]
        if not batches:
            return []
        slots = GPU_SLOTS if gpu.current() else os.cpu_count() or 1
        service = queueing.fitted(batches, slots)
        ranked = sorted(
            self.space,
            key=lambda configuration: -self._predicted(service, configuration),
        )
        chosen: dict[Any, Configuration] = {}
        for configuration in ranked:
            kind = key(
                {
                    name: value
                    for name, value in configuration.items()
                    if name not in (DELAY, PREFERRED)
                }
            )
            chosen.setdefault(kind, configuration)
        return list(chosen.values())[:PROPOSED]

    def _predicted(
        self, service: queueing.Service, configuration: Configuration
    ) -> float:
        if self.goal.rate is not None:
            return -queueing.latency(service, configuration, self.goal.rate)
        limit = None
        if self.goal.ms is not None:
            limit = MEAN_SHARE * self.goal.ms / 1e3
        return queueing.capacity(service, configuration, limit)

    def _holding(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials within the limit, the best first."""
        within_limit = [trial for trial in trials if trial.score is not None]
        return sorted(within_limit, key=lambda trial: -(trial.score or 0.0))

    def _finalists(self, trials: Sequence[Trial]) -> list[Configuration]:
        """The default and the best other configurations. Variants that torch serves are included
        only if allowed.
        """
        other_configurations = [
            trial.configuration
            for trial in self._holding(trials)
            if key(trial.configuration) != key(self.space.default)
            and (
                self.options.allow_torch
                or not self._replaced_by_torch(trial.configuration)
            )
        ]
        return [self.space.default, *other_configurations[:FINALISTS]]

    def _replaced_by_torch(self, configuration: Configuration) -> bool:
        return configuration.get(RUNTIME) == TORCH != self.space.default.get(RUNTIME)

    def _result(
        self,
        trials: Sequence[Trial],
        finalists: Sequence[Configuration],
        confirmed: Sequence[Trial],
    ) -> Tuned:
        verdict, best, before, after = self._judged(trials, finalists, confirmed)
        return Tuned(
            name=self.spec.name,
            goal=str(self.goal),
            configurations=len(self.space),
            verdict=verdict,
            default=self.space.default,
            best=best,
            changes=changes(self.spec, self.space.default, best),
            before=None if before is None else abs(before),
            after=None if after is None else abs(after),
            gain=self._gain(before, after),
            trials=tuple(trials),
            confirmed=tuple(confirmed),
            fixed=self.space.fixed,
            torch_faster=self._torch_faster(trials),
            requests=tuple(
                dict.fromkeys(sequence[0].name for sequence in self.sequences)
            ),
            host={**host(), "gpu": _gpu_name()},
            seconds=round(time.monotonic() - self.began, 1),
        )

    def _gain(self, before: float | None, after: float | None) -> float | None:
        if before is None or after is None:
            return None
        return self.goal.gain(abs(before), abs(after))

    def _judged(
        self,
        trials: Sequence[Trial],
        finalists: Sequence[Configuration],
        confirmed: Sequence[Trial],
    ) -> tuple[str, Configuration, float | None, float | None]:
        """The verdict, the recommended configuration, and the scores of the default and of that
        one.
        """
        scores = _scores(finalists, confirmed)
        before = _mean(scores[key(self.space.default)])
        best, after = _best(finalists[1:], scores) or (self.space.default, before)
        if before is None and trials[0].score is not None and not confirmed:
            before = after = trials[0].score
        unknown = any(
            self._unknown(trial)
            for trial in confirmed
            if trial.configuration == self.space.default
        )
        verdict = SAME if unknown else self._verdict(scores, best, after)
        if verdict != BETTER:
            return verdict, self.space.default, before, before
        return verdict, best, before, after

    def _verdict(
        self,
        scores: Mapping[Any, Sequence[float | None]],
        best: Configuration,
        after: float | None,
    ) -> str:
        """BETTER only if each confirmation of the best beats each of the default."""
        if after is None:
            return UNMET
        best_scores = [
            score for score in scores.get(key(best), ()) if score is not None
        ]
        default = [
            score for score in scores[key(self.space.default)] if score is not None
        ]
        if not default:
            return BETTER
        if not best_scores or min(best_scores) <= max(default):
            return SAME
        gain = self.goal.gain(abs(sum(default) / len(default)), abs(after))
        return BETTER if gain >= SMALLEST_GAIN else SAME

    def _unknown(self, trial: Trial) -> bool:
        """Whether too few requests were measured to decide if the limit holds."""
        figures = trial.figures
        unread = figures.get("latency_ms", {}).get(self.goal.name) is None
        return (
            self._needs_latency and bool(figures) and unread and not figures["errors"]
        )

    def _torch_faster(self, trials: Sequence[Trial]) -> str | None:
        """Torch's best trial, if it beats the best plan by more than SMALLEST_GAIN."""
        best: dict[bool, Trial] = {}  # by whether torch replaces the plans
        for trial in self._holding(trials):
            best.setdefault(self._replaced_by_torch(trial.configuration), trial)
        torch, plan = best.get(True), best.get(False)
        if torch is None or torch.score is None:
            return None
        if plan is None or plan.score is None:
            return f"only torch keeps the limit, with {_text(torch.configuration)}"
        gain = self.goal.gain(abs(plan.score), abs(torch.score))
        if gain < SMALLEST_GAIN:
            return None
        return f"torch is {gain:.2f} times as good as the plan, with {_text(torch.configuration)}"


def _scores(
    finalists: Sequence[Configuration], confirmed: Sequence[Trial]
) -> dict[Any, list[float | None]]:
    return {
        key(configuration): [
            trial.score
            for trial in confirmed
            if key(trial.configuration) == key(configuration)
        ]
        for configuration in finalists
    }


def _best(
    configurations: Sequence[Configuration],
    scores: Mapping[Any, Sequence[float | None]],
) -> tuple[Configuration, float] | None:
    """The configuration with the highest mean score, and that score."""
    means = (
        (configuration, _mean(scores[key(configuration)]))
        for configuration in configurations
    )
    return max(
        ((configuration, mean) for configuration, mean in means if mean is not None),
        key=lambda pair: pair[1],
        default=None,
    )


def _facts(model: PublishedModel, result: ModelResult) -> Facts:
    config = model.config
    return Facts(
        max_batch_size=config.max_batch_size,
        dynamic=config.HasField("dynamic_batching")
        or bool(config.ensemble_scheduling.step),
        segments=max(1, len(result.segments)),
        plan_executes=bool(result.plan_executed),
        backend=model.sidecar.get("serve_as") == "tensorrt_plan",
        no_graphs=triton.graphs.refused(str(model.sidecar["versions"].get("tensorrt"))),
    )


def _figures(level: LevelResult | None) -> dict[str, Any]:
    """The figures of a level that a reader compares."""
    if level is None:
        return {}
    return {
        "load": level.load,
        "throughput": asdict(level.throughput),
        "latency_ms": {
            name: estimate.value for name, estimate in level.latency_ms.items()
        },
        "errors": dict(level.errors),
        "batch_sizes": level.server["batch_sizes"],
        "steady": level.steady,
    }


def _mean(scores: Sequence[float | None]) -> float | None:
    """The mean; None unless each trial is within the limit."""
    known = [score for score in scores if score is not None]
    if known and len(known) == len(scores):
        return sum(known) / len(known)
    return None


def _text(configuration: Configuration) -> str:
    return ", ".join(f"{name} {value}" for name, value in configuration.items())


def _gpu_name() -> str | None:
    device = gpu.current()
    return device.name if device else None
