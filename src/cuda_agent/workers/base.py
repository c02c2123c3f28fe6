"""What every worker offers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from cuda_agent.records import Candidate, Verdict


class Worker(Protocol):
    """Judges candidates for one problem."""

    def evaluate(self, candidate: Candidate) -> Verdict:
        """The verdict, waited for."""

    def submit(self, candidate: Candidate) -> Future[Verdict]:
        """The verdict, later."""

    def close(self) -> None: ...
