"""Many candidates judged by a pool, each verdict stored once, whatever dies on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait

from cuda_agent.errors import HarnessError
from cuda_agent.records import Candidate, Verdict
from cuda_agent.store import Store
from cuda_agent.workers.base import Worker

OnVerdict = Callable[[Candidate, Verdict], None]
_ATTEMPTS = 5


def judge_all(
    candidates: Iterable[Candidate], worker: Worker, store: Store, run_id: str, settings_key: str,
    on_verdict: OnVerdict | None = None,
) -> None:
    """Judges and stores what has no verdict under `settings_key` yet: a call after a kill goes on
    where the other one ended. One process at a time works on a run.

    A `harness_error`, which is never the candidate's fault, is judged again up to five times.
    Raises OutputError when the store cannot be written, SettingsError when another process works on
    the run, and what the user must mend, see LocalPool.
    """
    with store.hold(run_id):
        waiting: dict[Future[Verdict], tuple[Candidate, int]] = {}
        seen: set[str] = set()
        for candidate in candidates:
            known = store.verdict(candidate.problem_hash, candidate.hash, settings_key)
            if known is None and candidate.hash not in seen:
                seen.add(candidate.hash)
                store.put_candidate(run_id, candidate)
                waiting[worker.submit(candidate)] = candidate, 1
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    candidate, attempt = waiting.pop(future)
                    verdict = _result(future)
                    if (verdict is None or verdict.status == "harness_error") and (
                        attempt < _ATTEMPTS
                    ):
                        waiting[worker.submit(candidate)] = candidate, attempt + 1
                        continue
                    if verdict is None:
                        future.result()  # raises
                    else:
                        store.put_verdict(run_id, verdict, settings_key)
                        if on_verdict is not None:
                            on_verdict(candidate, verdict)
        finally:
            for future in waiting:
                future.cancel()


def _result(future: Future[Verdict]) -> Verdict | None:
    """None for a failure of our own that may not happen again."""
    try:
        return future.result()
    except HarnessError:
        return None
