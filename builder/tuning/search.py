"""Selects the next configuration to measure: first the proposals of the queueing model, then
Optuna's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.errors import EnvironmentProblem
from builder.tuning.space import Configuration, Space, key

DEFAULT, MODEL, SAMPLED = "default", "queueing model", "Optuna"
"""The source of a configuration."""
PROPOSALS = 50
"""The search ends after this many known configurations in a row: Optuna may repeat proposals."""


@dataclass(frozen=True)
class Trial:
    """One measured configuration.

    `score` is None if it exceeds the limit, or could not be served for the reason in `problem`.
    `figures` are those of its best level. `seconds` is the time to prepare its files, to load it
    into the server, and to measure it.
    """

    configuration: Configuration
    proposed_by: str
    score: float | None
    problem: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[Configuration, str], Trial]


def search(
    space: Space,
    measure: Measure,
    *,
    trials: int,
    first: Callable[[Trial], Sequence[Configuration]] = lambda default: (),
    seed: int = 0,
) -> list[Trial]:
    """Measure the default, then the proposals of `first`, then those of Optuna.

    Stops after `trials` different configurations, or after all configurations. Raises
    EnvironmentProblem if Optuna is not installed.
    """
    run = _Search(space, measure, min(trials, len(space)), seed)
    run.try_one(space.default, DEFAULT)
    for configuration in first(run.trials[0]):
        run.try_one(space.canonical(configuration), MODEL)
    run.try_proposals()
    return run.trials


class _Search:
    def __init__(self, space: Space, measure: Measure, most: int, seed: int) -> None:
        self.space = space
        self.measure = measure
        self.most = most
        self.known: dict[Any, Trial] = {}
        self.study, self.distributions = _study(space, seed)

    @property
    def trials(self) -> list[Trial]:
        return list(self.known.values())

    def try_one(self, configuration: Configuration, proposed_by: str) -> None:
        """Measure a configuration and report it to Optuna, unless it is known or the limit of
        trials is reached.
        """
        if key(configuration) in self.known or len(self.known) >= self.most:
            return
        measured = self.measure(configuration, proposed_by)
        self.known[key(configuration)] = measured
        import optuna

        chosen = {
            dimension.name: dimension.values.index(configuration[dimension.name])
            for dimension in self.space.dimensions
        }
        self.study.add_trial(
            optuna.trial.create_trial(
                params=chosen,
                distributions=self.distributions,
                value=self._value(measured),
            )
        )

    def try_proposals(self) -> None:
        repeated = 0
        while len(self.known) < self.most and repeated < PROPOSALS:
            trial = self.study.ask(self.distributions)
            configuration = self.space.canonical(
                {
                    dimension.name: dimension.values[trial.params[dimension.name]]
                    for dimension in self.space.dimensions
                }
            )
            before = self.known.get(key(configuration))
            repeated = repeated + 1 if before else 0
            if before is None:
                before = self.measure(configuration, SAMPLED)
                self.known[key(configuration)] = before
            self.study.tell(trial, self._value(before))
        self._fill()

    def _fill(self) -> None:
        """Measure configurations that Optuna did not propose, while trials are left."""
        for configuration in self.space:
            self.try_one(configuration, SAMPLED)

    def _value(self, trial: Trial) -> float:
        """The value for Optuna, which requires a number: failures are worse than all configurations
        within the limit.
        """
        if trial.score is not None:
            return trial.score
        scores = [
            known_trial.score
            for known_trial in self.known.values()
            if known_trial.score is not None
        ]
        return min(scores, default=0.0) - 1.0


def _study(space: Space, seed: int) -> tuple[Any, dict[str, Any]]:
    try:
        import optuna
    except ImportError as error:
        raise EnvironmentProblem(
            "tune needs Optuna, which is not installed",
            fix="pip install 'trt-build[tune]'",
        ) from error
    from builder.tuning.sampler import GridSampler

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # positions in the ordered values: neighbors are similar, which categories would hide
    distributions = {
        dimension.name: optuna.distributions.IntDistribution(
            0, len(dimension.values) - 1
        )
        for dimension in space.dimensions
    }
    sampler = GridSampler(distributions, seed)
    return optuna.create_study(direction="maximize", sampler=sampler), distributions
