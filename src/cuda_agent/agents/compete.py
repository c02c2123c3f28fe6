"""Chat models at work on one problem: one episode, or several side by side at one judge."""

from __future__ import annotations

import os
import threading
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.agents import context
from cuda_agent.agents.engineer import ChatLimits, Engineer, Watch
from cuda_agent.agents.loop import ranking
from cuda_agent.agents.tools.judging import Bench
from cuda_agent.agents.tools.toolbox import Toolbox
from cuda_agent.agents.tools.workfolder import prepare
from cuda_agent.agents.transcript import Heading, Transcript
from cuda_agent.errors import SettingsError
from cuda_agent.policies.chat import ChatModel, Dialect
from cuda_agent.policies.prices import Price, price_of
from cuda_agent.policies.scripted import PREFIX, ScriptedChat
from cuda_agent.records import Candidate, Episode, Record, Verdict
from cuda_agent.store import Store
from cuda_agent.targets import DeviceFacts

ENDPOINT = "endpoint"
KEY_ENV = "OPENAI_API_KEY"
_NO_KEY = "no-key-4b1d93"  # of servers on this machine, which want none
_STOP_S = 5.0


def is_chat(policy: str) -> bool:
    """Whether a policy's name means a chat model."""
    return policy == ENDPOINT or policy.startswith(PREFIX)


@dataclass(frozen=True)
class ChatOptions(Record):
    """What a person chooses for a chat model. The key itself is never among them.

    `protocol`: "tools", "text" (one fenced action a turn), or "auto": tools, and text where the
    endpoint refuses them. `context` and `reply_tokens` in tokens; `prices` a file.
    """

    model: str = ""
    base_url: str | None = None
    key_env: str = KEY_ENV
    key_file: str | None = None
    samples: int = 1
    turns: int = 200
    context: int = 131_072
    max_cost_usd: float | None = None
    prices: str | None = None
    protocol: str = "auto"
    stream: bool = True
    reply_tokens: int | None = None
    timeout_s: float = 600.0
    patience_s: float = 900.0

    def __post_init__(self) -> None:
        for name in ("samples", "turns", "context", "reply_tokens", "timeout_s", "patience_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingsError(f"{name.replace('_', '-')} is {value}; it must be above 0.")
        if self.protocol not in ("auto", "tools", "text"):
            raise SettingsError(f"there is no protocol {self.protocol!r}; use auto, tools or text.")
        if self.max_cost_usd is not None and self.prices is None:
            raise SettingsError("--max-cost needs --prices FILE, what the model's tokens cost.")

    def check(self, policy: str) -> None:
        """What only matters for this policy. Raises SettingsError."""
        if policy == ENDPOINT and not self.model:
            raise SettingsError("--policy endpoint needs --model NAME.")
        if policy == ENDPOINT:
            self.price()

    def price(self) -> Price | None:
        return None if self.prices is None else price_of(self.model, Path(self.prices))

    def key(self) -> str:
        """From the file, or the environment. Raises SettingsError where an endpoint that is not
        on this machine has none."""
        if self.key_file is not None:
            try:
                key = Path(self.key_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(f"{self.key_file}: the key cannot be read: {error}.") from None
        else:
            key = os.environ.get(self.key_env, "").strip()
        if key:
            return key
        host = urllib.parse.urlsplit(self.base_url or "").hostname
        if host in ("localhost", "127.0.0.1", "::1"):
            return _NO_KEY
        raise SettingsError(f"there is no key: set {self.key_env}, or give --key-file FILE.")


def make_chat(policy: str, options: ChatOptions, start: int) -> ChatModel:
    """`start`: replies that were given before. Raises SettingsError."""
    if policy.startswith(PREFIX):
        script = Transcript.load(Path(policy.removeprefix(PREFIX)))
        dialect: Dialect = "text" if script.heading.dialect == "text" else "tools"
        replies = [turn.reply for turn in script.turns]
        return ScriptedChat(replies, script.heading.model, dialect, start)
    from cuda_agent.policies.endpoint import Endpoint

    return Endpoint(
        options.model, options.key(), options.base_url, options.stream,
        "text" if options.protocol == "text" else "tools", options.protocol == "auto",
        options.reply_tokens, options.timeout_s, options.patience_s,
    )


def episode_id(run_id: str, sample: int) -> str:
    return run_id if sample == 0 else f"{run_id}.{sample}"


def transcript_path(store: Store, run_id: str, sample: int) -> Path:
    return store.root / "transcripts" / f"{episode_id(run_id, sample)}.jsonl"


def transcripts(store: Store, run_id: str) -> list[Transcript]:
    """Of a run, in the order of its samples; empty for a run without chat models."""
    found, sample = [], 0
    while (path := transcript_path(store, run_id, sample)).exists():
        found.append(Transcript.load(path))
        sample += 1
    return found


def best_of(store: Store, run_id: str, samples: int) -> list[tuple[Candidate, Verdict]]:
    """Every correct candidate of every sample once, the fastest first."""
    turns = [
        turn
        for sample in range(samples)
        if (episode := store.episode(episode_id(run_id, sample))) is not None
        for turn in episode.turns
    ]
    return ranking(Episode("", "", 0, tuple(turns)), store)


@dataclass
class Competition:
    """`facts` describe the device, `regions` the problem's graph for readers."""

    policy: str
    options: ChatOptions
    limits: ChatLimits
    bench: Bench
    facts: DeviceFacts
    store: Store
    run_id: str
    track: str
    precision: str
    seed: int = 0
    regions: Sequence[dict[str, Any]] = ()
    watch: Watch = lambda event: None

    def run(self) -> list[str]:
        """Why each episode ended. Continues what is stored. Raises as Engineer.work."""
        self._stop = threading.Event()
        self._engineers: list[Engineer] = []
        try:
            for sample in range(self.options.samples):
                self._engineers.append(self._engineer(sample))
            if len(self._engineers) == 1:
                return [self._engineers[0].work()]
            return self._side_by_side()
        finally:
            self._stop.set()
            for engineer in self._engineers:
                engineer.toolbox.close()

    def _side_by_side(self) -> list[str]:
        ended: dict[int, str | BaseException] = {}

        def work(engineer: Engineer) -> None:
            try:
                ended[engineer.sample] = engineer.work()
            except BaseException as error:  # told below, in the caller's thread
                ended[engineer.sample] = error
                if not isinstance(error, Exception):
                    self._stop.set()

        threads = [
            threading.Thread(target=work, args=(engineer,), daemon=True)
            for engineer in self._engineers
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            self._stop.set()
            for thread in threads:  # after Ctrl-C; one that waits for an endpoint is left behind
                thread.join(_STOP_S / len(threads))
        for outcome in ended.values():
            if isinstance(outcome, BaseException):
                raise outcome
        return [str(ended[sample]) for sample in sorted(ended)]

    def _engineer(self, sample: int) -> Engineer:
        store, own = Store(self.store.root), episode_id(self.run_id, sample)
        path = transcript_path(store, self.run_id, sample)
        stored = Transcript.load(path) if path.exists() else None
        chat = make_chat(self.policy, self.options, len(stored.turns) if stored else 0)
        root = prepare(store.root / "work" / own, self.bench, self.facts, self.regions)
        toolbox = Toolbox(root, self.bench, self._author(), max(1, self.facts.units))

        def begin(dialect: str) -> Transcript:
            heading = self._heading(own, toolbox, "text" if dialect == "text" else "tools")
            return Transcript.begin(path, heading)

        if stored is not None and stored.turns:
            chat.dialect = "text" if stored.heading.dialect == "text" else "tools"
        transcript = stored if stored is not None and stored.turns else begin(chat.dialect)
        toolbox.recall(
            (answer.name, answer.arguments)
            for turn in transcript.turns for answer in turn.answers if answer.status != "error"
        )
        episode = store.episode(own) or Episode(self.bench.problem.hash, self.policy, self.seed)
        if episode.best_verdict_hash is not None:
            toolbox.judging.best = store.verdict_by_hash(episode.best_verdict_hash)
            toolbox.judging.ever_ok = True
        return Engineer(
            chat, toolbox, transcript, begin, store, own, episode, self.limits,
            self.options.price() if self.policy == ENDPOINT else None, sample, self.watch,
            lambda: sum(e.transcript.cost_usd for e in self._engineers if e.sample != sample),
            self._stop.is_set,
        )

    def _author(self) -> str:
        return self.options.model or "scripted"

    def _heading(self, own: str, toolbox: Toolbox, dialect: Dialect) -> Heading:
        start = context.opening(
            toolbox, self.bench.problem, self.facts.name, self.track, self.precision,
            self.options.turns, dialect,
        )
        settings = {"track": self.track, "precision": self.precision, "target": self.facts.target}
        return Heading(
            own, self.bench.problem.to_json(), self._author(), dialect,
            tuple(toolbox.schemas()), start, settings,
        )
