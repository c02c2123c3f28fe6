"""What tokens cost: a table in a file, since prices change and differ from user to user.

    ["name-of-the-model"]     # TOML; US dollars for a million tokens
    input = 3.0
    cached = 0.3              # of the input, what the endpoint still had; default: as input
    output = 15.0
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.errors import SettingsError
from cuda_agent.policies.chat import Usage


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens."""

    input: float
    output: float
    cached: float

    def of(self, usage: Usage) -> float:
        """US dollars."""
        fresh = max(0, usage.prompt - usage.cached)
        dollars = fresh * self.input + usage.cached * self.cached + usage.completion * self.output
        return dollars / 1e6


def price_of(model: str, path: Path) -> Price:
    """Raises SettingsError: no such file, not such a table, or the model is not in it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the price table {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the price table {path} is not TOML: {error}.") from None
    row = table.get(model)
    if not isinstance(row, dict):
        raise SettingsError(
            f'{path} has no price for {model!r}; add ["{model}"] with input and output.'
        )
    try:
        whole = float(row["input"])
        price = Price(whole, float(row["output"]), float(row.get("cached", whole)))
    except (KeyError, TypeError, ValueError):
        raise SettingsError(f'{path}: ["{model}"] needs the numbers input and output.') from None
    if not 0 <= min(price.input, price.output, price.cached) < float("inf"):
        raise SettingsError(f'{path}: ["{model}"] holds a price that is none.')
    return price
