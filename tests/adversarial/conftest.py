"""Judges are shared by all exhibits of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from museum import Exhibit

from cuda_agent.evaluation import Judge
from judging import Judges

Curator = Callable[[Exhibit], Judge]


@pytest.fixture(scope="session")
def judge_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Curator]:
    """judge_of(exhibit): a judge of its problem."""
    judges = Judges(tmp_path_factory.mktemp("museum"))
    yield lambda exhibit: judges.get(
        exhibit.problem, exhibit.target, track=exhibit.track, precision=exhibit.precision,
        tier=exhibit.tier, deadline_s=5.0, compile_deadline_s=20.0,
    )
    judges.close()
