"""The store: what was put comes back, whatever happens to the process or the disk."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cuda_agent import store as store_module
from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.records import Candidate, Episode, Interval, Problem, Run, Timing, Turn, Verdict
from cuda_agent.store import Store, new_run_id

PROBLEM = Problem("softmax", "class Model: ...", "softmax.py")
RUN = Run("run-1", "optimize", PROBLEM, {"budget": 4}, "2026-01-01T00:00:00Z")
CANDIDATE = Candidate(PROBLEM.hash, {"model_new.py": "x = 1\n"}, "search", {"graph": {}}, True)
VERDICT = Verdict(
    status="ok", problem="softmax", problem_hash=PROBLEM.hash, candidate_hash=CANDIDATE.hash,
    target="cpu", tier="screen", track="library", precision="strict", dtype="float32",
    speedup={"eager": Interval(2.0, 1.9, 2.1), "compile_default": None},
    timing=Timing(1.0, 0.9, 1.1, (0.9, 1.0, 1.1), "clock"),
)


def test_everything_comes_back_in_another_process_view(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    assert store.runs() == [] and not (tmp_path / "runs").exists()
    turn = Turn({"name": "submit", "arguments": {}}, None, None, "ok", 0.5)
    episode = Episode(PROBLEM.hash, "search", 0, (turn,))
    store.put_run(RUN)
    store.put_candidate(RUN.id, CANDIDATE)
    store.put_verdict(RUN.id, VERDICT, "key")
    store.put_episode(RUN.id, episode)
    store.put_note(RUN.id, "regions", [{"id": "r0"}])

    other = Store(tmp_path / "runs")
    assert other.run(RUN.id) == RUN and other.runs() == [RUN]
    assert other.candidate(CANDIDATE.hash) == CANDIDATE
    assert other.verdict(PROBLEM.hash, CANDIDATE.hash, "key") == VERDICT
    assert other.verdict(PROBLEM.hash, CANDIDATE.hash, "other key") is None
    assert other.verdict_by_hash(VERDICT.hash) == VERDICT
    assert other.verdicts(RUN.id) == [VERDICT] and other.verdicts("another") == []
    assert other.episode(RUN.id) == episode
    assert other.note(RUN.id, "regions") == [{"id": "r0"}] and other.note(RUN.id, "x") is None


def test_the_newest_state_wins_and_a_reader_follows_a_writer(tmp_path: Path) -> None:
    writer, reader = Store(tmp_path), Store(tmp_path)
    writer.put_run(RUN)
    assert not reader.run(RUN.id).finished
    writer.put_run(dataclasses.replace(RUN, finished=True))
    assert reader.run(RUN.id).finished and len(reader.runs()) == 1


def test_a_torn_last_line_is_ignored_and_then_cut_off(tmp_path: Path) -> None:
    Store(tmp_path).put_run(RUN)
    index = tmp_path / "index.jsonl"
    whole = index.read_bytes()
    index.write_bytes(whole + b'{"kind":"run","blob":"dead')
    store = Store(tmp_path)
    assert store.runs() == [RUN]
    store.put_candidate(RUN.id, CANDIDATE)
    assert index.read_bytes().startswith(whole) and b"dead" not in index.read_bytes()
    assert Store(tmp_path).candidate(CANDIDATE.hash) == CANDIDATE
    assert store.candidate(CANDIDATE.hash) == CANDIDATE


def test_kill_while_writing_loses_nothing_that_was_put(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from cuda_agent.store import Store
        store = Store(sys.argv[1])
        for i in range(100_000):
            store.put_note("run", f"n{i}", i)
            print(i, flush=True)
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(20):
        last = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    rest = child.stdout.read().split()
    child.wait()
    last = max([last, *map(int, rest[:-1])])
    store = Store(tmp_path)
    assert [store.note("run", f"n{i}") for i in range(last + 1)] == list(range(last + 1))
    store.put_note("run", "after", 1)
    assert Store(tmp_path).note("run", "after") == 1


def _write_notes(root: str, who: str) -> None:
    store = Store(root)
    for i in range(25):
        store.put_note(who, f"n{i}", [who, i])


def test_two_writers_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_notes, args=(str(tmp_path), w)) for w in "ab"]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
        assert w.exitcode == 0
    store = Store(tmp_path)
    for who in "ab":
        assert [store.note(who, f"n{i}") for i in range(25)] == [[who, i] for i in range(25)]


@pytest.mark.parametrize("failing", ["blob", "index"])
def test_full_disk_says_so_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    store = Store(tmp_path)
    store.put_run(RUN)
    before = (tmp_path / "index.jsonl").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if failing == "blob":
            patch.setattr(store_module, "write_file", full)
        else:
            store.put_note(RUN.id, "n", 1)
            before = (tmp_path / "index.jsonl").read_bytes()
            patch.setattr(store_module.os, "fsync", full)
            patch.setattr(Store, "_write_blob", lambda self, data: "0" * 64)
        with pytest.raises(OutputError, match=r"cannot be written \(No space left"):
            store.put_candidate(RUN.id, CANDIDATE)
    assert (tmp_path / "index.jsonl").read_bytes() == before
    store.put_candidate(RUN.id, CANDIDATE)
    assert Store(tmp_path).candidate(CANDIDATE.hash) == CANDIDATE


def test_a_changed_blob_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_note("run", "n", {"a": 1})
    (blob,) = (p for p in (tmp_path / "blobs").rglob("*") if p.is_file())
    blob.write_text('{"a":2}')
    with pytest.raises(OutputError, match="does not hold what was stored"):
        store.note("run", "n")
    blob.unlink()
    with pytest.raises(OutputError, match="missing or unreadable"):
        store.note("run", "n")


def test_unknown_run_names_the_newest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(SettingsError, match="it holds none"):
        store.run("x")
    store.put_run(RUN)
    with pytest.raises(SettingsError, match="the newest are run-1"):
        store.run("x")


def test_a_run_is_held_by_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with (
        store.hold("run"),
        pytest.raises(SettingsError, match="worked on by another process"),
        Store(tmp_path).hold("run"),
    ):
        pass
    with store.hold("run"):
        pass


def test_run_ids_are_safe_file_names_and_differ() -> None:
    ids = {new_run_id("A/b c.py:" + "x" * 80) for _ in range(20)}
    assert len(ids) > 15
    assert all(set(i) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for i in ids)
