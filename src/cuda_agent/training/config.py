"""A training run's settings: TOML in, frozen dataclasses out.

Defaults are the published hyper-parameters (arXiv 2602.24286, section 4.1) where the paper gives
them; what it does not say is ours and marked [own]. A key that does not exist, or a value of the
wrong type or out of range, is refused in one sentence with its file and key.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.errors import SettingsError
from cuda_agent.records import content_hash

STAGES = ("warmup", "rejection", "value", "agentic")
SOURCES = ("simulated", "recorded", "live")


@dataclass(frozen=True)
class Data:
    """`problems`: files, folders of problem files, Parquet files with a `code` column, or "ours";
    for recorded verdicts also the table, "TABLE#train" or "TABLE#held-out". Relative paths start at
    the config file's folder. `validation`: the same, never trained on. `limit` takes only the first
    so many (0: all)."""

    problems: tuple[str, ...] = ("ours",)
    validation: tuple[str, ...] = ()
    limit: int = 0


@dataclass(frozen=True)
class Environment:
    """Who answers a plan.

    source: "simulated" (analytic cost model, no hardware), "recorded" (a table of measured
        verdicts) or "live" (the judge on `target`).
    table: the recorded verdicts, for "recorded".
    space_limit: plans of a problem at most; larger spaces are narrowed (0: never).
    reward, outcome: of which verdict what is paid: a name of rewards.py, and the episode's "best"
        or "final" verdict.
    turns: of an episode in the multi-turn stages. [own: 8, published 150; plans, not files]
    workers: judging processes of "live".
    audit_every: each so many top-scored candidate is judged again at the audit tier (0: none).
    """

    source: str = "simulated"
    target: str = "null"
    table: str = ""
    space_limit: int = 0
    reward: str = "milestone"
    outcome: str = "best"
    turns: int = 8
    workers: int = 1
    audit_every: int = 20


@dataclass(frozen=True)
class Model:
    """path: a Hugging Face folder; "" is the builtin model, from random weights of `layers`,
    `width` and `heads`. lora_rank: 0 trains all weights. dtype: of the weights while training.
    critic: "separate" (a second network, as published) or "shared" (a head on the actor's trunk).
    """

    path: str = ""
    layers: int = 4
    width: int = 256
    heads: int = 4
    lora_rank: int = 0
    dtype: str = "float32"
    device: str = "auto"
    critic: str = "separate"


@dataclass(frozen=True)
class Ppo:
    """Both PPO stages. entropy, kl: weights of an entropy bonus and of the distance to the stage's
    first policy [own: 0, the paper names neither]. epochs: passes over a batch [own].
    normalize: advantages to zero mean and unit deviation over a batch [own]."""

    gamma: float = 1.0
    lam: float = 0.95
    clip_low: float = 0.2
    clip_high: float = 0.28
    actor_lr: float = 3e-6
    critic_lr: float = 6e-6
    epochs: int = 1
    entropy: float = 0.0
    kl: float = 0.0
    normalize: bool = True
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    temperature: float = 1.0


@dataclass(frozen=True)
class PpoStage:
    """batch: episodes of a step. minibatch: episodes of an optimizer step; published equal to
    the batch. problems_per_batch: 0 draws one problem for each episode."""

    steps: int = 150
    batch: int = 1024
    minibatch: int = 1024
    problems_per_batch: int = 0


@dataclass(frozen=True)
class Rejection:
    """episodes: sampled, `chunk` at a time. min_reward: kept above it, as published. epochs, lr,
    batch: of the supervised fine-tuning [own: not found in the paper]. extra: episode files of
    other policies, see episodes.py."""

    episodes: int = 4096
    min_reward: float = 0.0
    epochs: int = 1
    lr: float = 3e-6
    batch: int = 64
    chunk: int = 256
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Value:
    """epochs, lr, batch: of the critic's pretraining [own, except the critic's published lr]."""

    epochs: int = 2
    lr: float = 6e-6
    batch: int = 64


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on. `stages` are those of `--stage all`, in order."""

    seed: int = 0
    stages: tuple[str, ...] = STAGES
    micro_tokens: int = 65536
    """Tokens of one forward and backward pass; larger batches are accumulated."""
    validate_every: int = 10
    """Steps of a PPO stage between measurements on the validation problems (0: none)."""
    data: Data = field(default_factory=Data)
    environment: Environment = field(default_factory=Environment)
    model: Model = field(default_factory=Model)
    ppo: Ppo = field(default_factory=Ppo)
    warmup: PpoStage = field(default_factory=PpoStage)
    rejection: Rejection = field(default_factory=Rejection)
    value: Value = field(default_factory=Value)
    agentic: PpoStage = field(default_factory=PpoStage)

    @property
    def hash(self) -> str:
        return content_hash(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


_CHOICES: dict[str, tuple[str, ...]] = {
    "environment.source": SOURCES, "environment.outcome": ("best", "final"),
    "model.critic": ("separate", "shared"), "model.dtype": ("float32", "bfloat16"),
}
_FROM_ZERO = {
    "seed", "validate_every", "data.limit", "environment.space_limit", "environment.audit_every",
    "model.lora_rank",
    "ppo.entropy", "ppo.kl", "ppo.weight_decay", "warmup.problems_per_batch",
    "agentic.problems_per_batch", "warmup.steps", "agentic.steps", "rejection.epochs",
    "value.epochs", "ppo.lam",
}
_ANY_NUMBER = {"rejection.min_reward"}


def load(path: str | Path) -> Config:
    """Raises SettingsError: no such file, not TOML (with the line), or a key that cannot be."""
    file = Path(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file} cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not TOML: {error}.") from error
    config = from_json(data, str(file))
    table, where = config.environment.table, config.data
    extra = tuple(_beside(file, p) for p in config.rejection.extra)
    return dataclasses.replace(
        config,
        rejection=dataclasses.replace(config.rejection, extra=extra),
        data=dataclasses.replace(
            where,
            problems=tuple(_beside(file, p) for p in where.problems),
            validation=tuple(_beside(file, p) for p in where.validation),
        ),
        environment=dataclasses.replace(
            config.environment, table=_beside(file, table) if table else ""
        ),
    )


def from_json(data: Mapping[str, Any], where: str = "config") -> Config:
    """From what TOML holds or `to_json` gave. Raises SettingsError."""
    config: Config = _decode(Config, data, where, "")
    for stage in config.stages:
        if stage not in STAGES:
            raise SettingsError(
                f"{where}: stages holds {stage!r}; choose from {', '.join(STAGES)}.")
    if list(config.stages) != sorted(set(config.stages), key=STAGES.index):
        raise SettingsError(f"{where}: stages must keep the order {', '.join(STAGES)}.")
    return config


def _beside(file: Path, text: str) -> str:
    return text if text == "ours" else str(file.parent.resolve() / text)


def _decode(kind: Any, data: Any, where: str, key: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _table(kind, data, where, key)
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(data, (list, tuple)) or not all(isinstance(v, str) for v in data):
            raise SettingsError(f"{where}: {key} is {data!r}; expected a list of strings.")
        return tuple(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        data = float(data)
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    if type(data) is not kind:
        raise SettingsError(f"{where}: {key} is {data!r}; expected {names[kind]}.")
    if key in _CHOICES and data not in _CHOICES[key]:
        offered = ", ".join(map(repr, _CHOICES[key]))
        raise SettingsError(f"{where}: {key} is {data!r}; choose from {offered}.")
    if kind in (int, float) and key not in _ANY_NUMBER:
        least = "0 or more" if key in _FROM_ZERO else "above 0"
        if not (data >= 0 if key in _FROM_ZERO else data > 0):
            raise SettingsError(f"{where}: {key} is {data!r}; it must be {least}.")
    return data


def _table(kind: Any, data: Any, where: str, key: str) -> Any:
    if not isinstance(data, Mapping):
        raise SettingsError(f"{where}: {key} is {data!r}; expected a table [{key}].")
    hints = typing.get_type_hints(kind)
    made = {}
    for name, value in data.items():
        full = f"{key}.{name}" if key else name
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(hints)}."
            raise SettingsError(f"{where}: there is no key {full!r}; {hint}")
        made[name] = _decode(hints[name], value, where, full)
    return kind(**made)
