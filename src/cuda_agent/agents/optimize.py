"""An instance in, the fastest audited candidate out: probe, capture, search, audit.

Every step is in the store as soon as it is done, so that the same run called again continues.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from cuda_agent import policies
from cuda_agent.agents.compete import ChatOptions, Competition, best_of, episode_id, is_chat
from cuda_agent.agents.engineer import ChatLimits, Event
from cuda_agent.agents.loop import Evaluator, Limits, Room, evaluations, run_episode
from cuda_agent.agents.planner import Planner
from cuda_agent.agents.tools.judging import Bench, Examiner
from cuda_agent.errors import CaptureError, HarnessError, ProblemError, SettingsError
from cuda_agent.evaluation import Settings, contestant_pool
from cuda_agent.evaluation.apart import Compiled, Examined
from cuda_agent.policies import Plan, Step, cost
from cuda_agent.problems import Instance, probe
from cuda_agent.records import (
    BASELINES,
    Candidate,
    Episode,
    Precision,
    Track,
    Verdict,
    content_hash,
)
from cuda_agent.store import Store
from cuda_agent.targets import DeviceFacts
from cuda_agent.workers import InlineWorker

AUDITED = 2
"""Correct audits wanted: the best by screen may only have been lucky."""

MAX_AUDITS = 6
"""Audits at most, when the first ones turn out wrong."""

AUDIT_SHARE, AUDIT_RESERVE_S = 0.4, 60.0
"""Of --minutes, kept for the audits: this share, but no more than so many seconds."""


@dataclass(frozen=True)
class Options:
    """What a person chooses. `minutes` bounds search and audits together; `baselines` are those of
    the audits (None: all four) and `audit_seconds` their time for sampling (None: the tier's).
    `model` is the folder of the builtin policy's model (None: the one in this package)."""

    target: str
    policy: str = "search"
    budget: int = 16
    minutes: float | None = None
    precision: Precision = "strict"
    track: Track = "library"
    seed: int = 0
    baselines: tuple[str, ...] | None = None
    audit_seconds: float | None = None
    model: str | None = None
    chat: ChatOptions = field(default_factory=ChatOptions)

    def __post_init__(self) -> None:
        if not isinstance(self.chat, ChatOptions):  # a dict when it comes from the store
            object.__setattr__(self, "chat", ChatOptions.from_json(self.chat or {}))
        if is_chat(self.policy):
            self.chat.check(self.policy)
        if self.budget < 1:
            raise SettingsError(f"the budget is {self.budget}; it must be at least 1 evaluation.")
        if self.minutes is not None and self.minutes <= 0:
            raise SettingsError(f"minutes is {self.minutes:g}; it must be above 0.")
        if self.baselines is not None:  # a list when it comes from the store
            object.__setattr__(self, "baselines", tuple(self.baselines))
        _ = self.audit_settings  # refuses baselines that do not exist

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def settings(self) -> Settings:
        # Candidates are ranked against eager; what torch.compile takes, the audits measure. Who
        # reads is told both: the builtin policy has learnt from feedback that names both.
        reads = self.policy == "builtin" or (
            is_chat(self.policy) and "compile_default" in (self.baselines or BASELINES)
        )
        return Settings(
            target=self.target, tier="screen", track=self.track, precision=self.precision,
            baselines=("eager", "compile_default") if reads else ("eager",),
        )

    @property
    def audit_settings(self) -> Settings:
        return replace(
            self.settings, tier="audit", baselines=self.baselines, time_limit_s=self.audit_seconds
        )


@dataclass(frozen=True)
class Outcome:
    """`candidate` is None where nothing was correct; `verdict` then is that of the last failure.

    `faster`: the 95% intervals of the speed-ups over eager and torch.compile (where measured) lie
    above 1. `interrupted`: Ctrl-C ended it; the verdict may then be of the screen tier. `ended`:
    why each episode of a chat model stopped.
    """

    candidate: Candidate | None
    verdict: Verdict | None
    faster: bool
    episode: Episode
    evaluations: int
    interrupted: bool = False
    ended: tuple[str, ...] = ()


class Observer(Protocol):
    """Is told how far it is."""

    def stage(self, text: str) -> None: ...

    def turn(self, evaluations: int, budget: int, step: Step) -> None: ...

    def chat(self, event: Event) -> None: ...


class Silent:
    """Observer that says nothing."""

    def stage(self, text: str) -> None:
        pass

    def turn(self, evaluations: int, budget: int, step: Step) -> None:
        pass

    def chat(self, event: Event) -> None:
        pass


class Worker(Examiner, Protocol):
    def close(self) -> None: ...


MakeWorker = Callable[[Instance, Settings, Path], Worker]


class InlineWorkers:
    """Makes the workers of one run. Their contestants come from one server, which begins to start
    at once: importing torch there takes seconds that capturing the graph needs as well."""

    def __init__(self, instance: Instance, settings: Settings) -> None:
        self._pool = contestant_pool(instance, settings)

    def __call__(self, instance: Instance, settings: Settings, cache: Path) -> Worker:
        return InlineWorker(
            instance.problem, instance, settings, cache_dir=cache, pool=self._pool
        )

    def close(self) -> None:
        self._pool.close()


def cache_dir() -> Path:
    """Where compiled kernels and baselines' times are kept."""
    return Path(os.environ.get("CUDA_AGENT_CACHE") or Path.home() / ".cache" / "cuda-agent")


def refuse_unsound(instance: Instance) -> None:
    """Raises ProblemError with the reasons why the problem cannot be judged."""
    found = probe(instance)
    if found:
        reasons = " ".join(f"{f.detail} ({f.id})" for f in found)
        raise ProblemError(f"{instance.problem.name} cannot be judged: {reasons}")


def optimize_instance(
    instance: Instance,
    facts: DeviceFacts,
    options: Options,
    store: Store,
    run_id: str,
    *,
    observer: Observer | None = None,
    make_worker: MakeWorker | None = None,
) -> Outcome:
    """Searches, then audits the best. Continues what the store holds of this run.

    The problem is taken as sound (see refuse_unsound). Raises CaptureError; OutputError when the
    store cannot be written. Ctrl-C ends it early with what there is.
    """
    tell = observer or Silent()
    if make_worker is None:
        with contextlib.closing(InlineWorkers(instance, options.settings)) as workers:
            return optimize_instance(
                instance, facts, options, store, run_id, observer=observer, make_worker=workers
            )
    start = time.monotonic()
    tell.stage("capturing the graph")
    planner = _planner(instance, facts, options)
    store.put_note(run_id, "regions", planner.regions() if planner else [])
    audited: list[tuple[Candidate, Verdict]] = []
    interrupted, ended = False, list[str]()

    def room(settings: Settings, worker: Evaluator) -> Room:
        assemble = _no_plans if planner is None else planner.assemble
        return Room(store, run_id, _key(settings, run_id), instance.problem.hash, assemble, worker)

    def worker(settings: Settings) -> _Lazy:
        return _Lazy(lambda: make_worker(instance, settings, cache_dir()))

    screen = options.settings
    audit = options.audit_settings
    deadline = _deadline(options, start)
    tell.stage("searching")
    try:
        with worker(screen) as screener:
            if planner is None or is_chat(options.policy):
                bench = Bench(
                    instance.problem, room(screen, screener), screener,
                    planner.space if planner else None,
                )
                ended = _compete(bench, facts, options, deadline, planner, tell)
            else:
                run_episode(
                    policies.get(options.policy, options.seed, options.model),
                    room(screen, screener), planner.space, planner.default,
                    Limits(options.budget, deadline), seed=options.seed,
                    task=planner.task(options.precision, options.track),
                    on_turn=lambda done, step: tell.turn(done, options.budget, step),
                )
        with worker(audit) as auditor:
            ranked = best_of(store, run_id, options.chat.samples)
            _audit(room(audit, auditor), ranked, audited, tell, _end(options, start))
    except KeyboardInterrupt:
        interrupted = True
    episode = _episode(store, run_id, instance, options)
    ranked = best_of(store, run_id, options.chat.samples)
    candidate, verdict = _choose(audited, ranked, episode, store, interrupted)
    faster = candidate is not None and verdict is not None and is_faster(verdict)
    count = sum(evaluations(e) for e in _episodes(store, run_id, options.chat.samples))
    return Outcome(candidate, verdict, faster, episode, count, interrupted, tuple(ended))


def _planner(instance: Instance, facts: DeviceFacts, options: Options) -> Planner | None:
    """A chat model writes kernels also for what cannot be captured. Raises CaptureError."""
    try:
        return Planner.make(instance, facts)
    except CaptureError:
        if is_chat(options.policy):
            return None
        raise


def _no_plans(plan: Plan) -> Candidate:
    raise SettingsError("the graph could not be captured, so there are no plans")


def _compete(
    bench: Bench, facts: DeviceFacts, options: Options, deadline: float | None,
    planner: Planner | None, tell: Observer,
) -> list[str]:
    chat = options.chat
    limits = ChatLimits(chat.turns, chat.context, options.budget, chat.max_cost_usd, deadline)
    return Competition(
        options.policy, chat, limits, bench, facts, bench.room.store, bench.room.run_id,
        options.track, options.precision, options.seed, planner.regions() if planner else [],
        tell.chat,
    ).run()


def is_faster(verdict: Verdict) -> bool:
    """The lower ends of the speed-ups over eager and torch.compile, where measured, exceed 1."""
    measured = [verdict.speedup.get(name) for name in ("eager", "compile_default")]
    lows = [interval.low for interval in measured if interval is not None]
    return verdict.ok and bool(lows) and min(lows) > 1


class _Lazy:
    """A worker that starts with its first candidate: a finished run needs none."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._worker: Worker | None = None

    def evaluate(self, candidate: Candidate) -> Verdict:
        return self._made().evaluate(candidate)

    def compile_only(self, candidate: Candidate) -> Compiled:
        return self._made().compile_only(candidate)

    def examine(self, candidate: Candidate, counters: bool, memory: bool) -> Examined:
        return self._made().examine(candidate, counters, memory)

    def _made(self) -> Worker:
        if self._worker is None:
            self._worker = self._make()
        return self._worker

    def __enter__(self) -> _Lazy:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()


def _key(settings: Settings, run_id: str) -> str:
    """Measurements belong to one run: another one may find the machine in another state."""
    return content_hash(settings.key, run_id)


def _end(options: Options, start: float) -> float | None:
    return None if options.minutes is None else start + options.minutes * 60


def _deadline(options: Options, start: float) -> float | None:
    """When the search must leave the rest of the time to the audits."""
    if options.minutes is None:
        return None
    seconds = options.minutes * 60
    return start + seconds - min(AUDIT_RESERVE_S, AUDIT_SHARE * seconds)


def _episode(store: Store, run_id: str, instance: Instance, options: Options) -> Episode:
    stored = store.episode(run_id)
    return stored or Episode(instance.problem.hash, options.policy, options.seed)


def _episodes(store: Store, run_id: str, samples: int) -> list[Episode]:
    found = [store.episode(episode_id(run_id, sample)) for sample in range(samples)]
    return [episode for episode in found if episode is not None]


def _audit(
    room: Room,
    ranked: Sequence[tuple[Candidate, Verdict]],
    audited: list[tuple[Candidate, Verdict]],
    tell: Observer,
    end: float | None,
) -> None:
    """Appends to `audited`, which so survives an interrupt. After `end` one correct one will do."""
    for candidate, _ in ranked[:MAX_AUDITS]:
        correct = sum(verdict.ok for _, verdict in audited)
        late = end is not None and time.monotonic() >= end
        if correct == AUDITED or (correct and late):
            return
        tell.stage(f"audit {correct + 1} of {min(AUDITED, len(ranked))}")
        try:
            audited.append((candidate, room.verdict(candidate)[0]))
        except HarnessError as error:
            tell.stage(f"audit failed: {error}")


def _choose(
    audited: Sequence[tuple[Candidate, Verdict]],
    ranked: Sequence[tuple[Candidate, Verdict]],
    episode: Episode,
    store: Store,
    interrupted: bool,
) -> tuple[Candidate | None, Verdict | None]:
    correct = [(c, v) for c, v in audited if v.ok]
    if correct:
        return min(correct, key=lambda pair: cost(pair[1]) or float("inf"))
    if ranked and (interrupted or not audited):
        return ranked[0]
    if audited:
        return None, audited[-1][1]
    hashes = [turn.verdict_hash for turn in episode.turns if turn.verdict_hash]
    return None, store.verdict_by_hash(hashes[-1]) if hashes else None
