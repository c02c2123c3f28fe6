"""Who answers a plan: an analytic model, a table of recorded verdicts, or the judge itself.

All three look alike to what trains. Every result derived from one carries its `label`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from cuda_agent import targets
from cuda_agent.errors import SettingsError
from cuda_agent.evaluation import Settings
from cuda_agent.policies import Plan
from cuda_agent.records import Verdict
from cuda_agent.training import simulated
from cuda_agent.training.config import Environment
from cuda_agent.training.live import LiveSource
from cuda_agent.training.recorded import RecordedSource, load_recorded
from cuda_agent.training.table import Table
from cuda_agent.training.tasks import TrainingProblem, load_tasks


class Source(Protocol):
    """Answers plans. `submit` from one thread; answers may come from others."""

    label: str
    """"simulated", "recorded" or "live"."""

    def submit(self, problem: TrainingProblem, plan: Plan, tier: str = "screen") -> Future[Verdict]:
        """The verdict of a plan, completed with its problem's defaults, later.

        Raises SettingsError for a plan that is not in the problem's space.
        """

    def close(self) -> None:
        """Waits for nothing: what was not answered yet is cancelled."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def load_problems(
    environment: Environment, paths: Sequence[str], *, cache: Path, limit: int = 0,
) -> list[TrainingProblem]:
    """The problems at `paths` with the spaces that `open_source(environment)` answers. For
    "recorded" a path may be the table itself or a split of it: "TABLE#train", "TABLE#held-out".

    Raises: ProblemError for a path that holds no problem; SettingsError when nothing is left;
    TargetUnavailable for "live".
    """
    if environment.source == "recorded":
        file = _table_file(environment)
        limits = environment.space_limit, limit
        return load_recorded(Table.load(file), file, paths, *limits)
    device = "cpu"
    if environment.source == "simulated":
        facts = simulated.facts(environment.target)
    else:
        target = targets.resolve(environment.target)
        facts, device = target.facts(), str(target.torch_device())
    return load_tasks(
        paths, facts, cache=cache, space_limit=environment.space_limit, limit=limit, device=device
    )


def open_source(environment: Environment, *, cache: Path, seed: int = 0) -> Source:
    """`cache` holds what was compiled and measured; `seed` settles the noise of "recorded" and the
    inputs of "live".

    Raises: SettingsError for a table that is missing or damaged; TargetUnavailable for "live".
    """
    if environment.source == "simulated":
        return simulated.SimulatedSource()
    if environment.source == "recorded":
        file = _table_file(environment)
        return RecordedSource(Table.load(file), seed, str(file))
    settings = Settings(target=environment.target)
    return LiveSource(settings, cache=cache, workers=environment.workers, seed=seed)


def _table_file(environment: Environment) -> Path:
    if not environment.table:
        raise SettingsError(
            "environment.source 'recorded' needs environment.table, a file made by "
            "`cuda-agent record`."
        )
    return Path(environment.table)
