"""Contestant processes alone: deadlines, deaths, arenas, and the fork server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from cuda_agent import targets
from cuda_agent.errors import ContestantFailure, HarnessError
from cuda_agent.evaluation import Pool, layout
from cuda_agent.evaluation.entrant import Entrant, LocalClient
from cuda_agent.evaluation.process import Contestant, child_environment

TARGET = targets.get("cpu")
MODULE = """
import os, time
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), scale))
    def forward(self, x):
        {body}
"""


def load(client: Contestant, folder: Path, body: str, **changes: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "model_new.py").write_text(MODULE.format(body=body))
    fields: dict[str, object] = {
        "folder": str(folder), "entry": "model_new.py", "class_name": "ModelNew",
        "form": "single", "cache": str(folder), "compile_mode": None, "seed": 0,
        "dtype": "float32", "precision": "strict", "threads": 1, "import_roots": [],
        "init": layout.describe(([], {}), []), "init_from": "", "state": None,
    }
    client.request("load", 10, **{**fields, **changes})


def running_in_group(group: int) -> list[str]:
    """Processes of a group that are not mere zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.fixture
def contestant(pool: Pool):  # type: ignore[no-untyped-def]
    made = pool.fresh()
    yield made
    made.kill()


def entrant(contestant: Contestant, x: torch.Tensor) -> Entrant:
    made = Entrant(contestant, TARGET, 5.0)
    tensors: list[torch.Tensor] = []
    tree = layout.describe((x,), tensors)
    made.place_inputs(0, tree, tensors)
    made.place_outputs([x], 3)
    return made


def test_outputs_come_back_through_the_arena(contestant: Contestant, tmp_path: Path) -> None:
    load(contestant, tmp_path, "return x * self.weight")
    x = torch.randn(5, 3)
    side = entrant(contestant, x)
    answer = side.run(0, slot=2, record=True)
    assert answer["ops"] == ["aten.mul"] and answer["copied"]
    assert torch.equal(side.outputs(2)[0], 2 * x)
    side.write(0, [x + 1])
    sample = side.call(0, slot=1)
    assert torch.equal(side.outputs(1)[0], 2 * (x + 1))
    assert 0 < sample.event_ms < sample.outside_ms
    side.poison(1)
    assert bool(torch.isnan(side.outputs(1)[0]).all())
    assert side.burst([0, 0, 0]) > 0
    assert torch.equal(side.outputs(1)[0], 2 * (x + 1))
    side.drop()


def test_a_process_is_used_again_after_unloading(contestant: Contestant, tmp_path: Path) -> None:
    side = entrant(contestant, torch.ones(2, 3))
    for i, factor in enumerate((3, 4)):
        load(contestant, tmp_path / str(i), f"return x * {factor}")
        side.run(0)
        assert float(side.outputs(0)[0][0, 0]) == factor
        contestant.request("unload", 5)
    with pytest.raises(ContestantFailure, match="no model is loaded"):
        side.run(0)


def test_an_exception_leaves_the_process_alive(contestant: Contestant, tmp_path: Path) -> None:
    load(contestant, tmp_path, "raise KeyError('which')")
    side = entrant(contestant, torch.ones(2, 3))
    for _ in range(2):
        with pytest.raises(ContestantFailure, match="which") as caught:
            side.run(0)
        assert caught.value.status == "runtime_error"
        assert "model_new.py" in str(caught.value), "the candidate's own line is shown"
    assert contestant.answers()


def test_a_hang_ends_at_the_deadline_and_the_process_with_it(
    contestant: Contestant, tmp_path: Path
) -> None:
    load(contestant, tmp_path, "os.fork() and None\n        time.sleep(100)")
    side = entrant(contestant, torch.ones(2, 3))
    side.deadline_s = 0.5
    start = time.monotonic()
    with pytest.raises(ContestantFailure, match=r"within 0\.5 s") as caught:
        side.run(0)
    assert caught.value.status == "timeout" and time.monotonic() - start < 3
    time.sleep(0.1)
    assert running_in_group(contestant.pid) == []  # its children as well
    with pytest.raises(HarnessError, match="gone"):
        side.run(0)


def test_what_it_printed_is_kept_for_the_verdict(contestant: Contestant, tmp_path: Path) -> None:
    load(contestant, tmp_path, "print('last words', flush=True); os._exit(3)")
    side = entrant(contestant, torch.ones(2, 3))
    with pytest.raises(ContestantFailure, match=r"status 3[\s\S]*last words"):
        side.run(0)


def test_a_flood_of_output_is_no_trouble(contestant: Contestant, tmp_path: Path) -> None:
    load(contestant, tmp_path, "print('x' * 10_000_000); return x")
    side = entrant(contestant, torch.ones(2, 3))
    side.run(0)
    assert len(contestant.output()) <= 8192


def test_state_reaches_the_model_and_names_are_compared(
    contestant: Contestant, tmp_path: Path
) -> None:
    load(contestant, tmp_path, "return x * self.weight")
    side = entrant(contestant, torch.ones(2, 3))
    for names, expected in ((["weight"], 7.0), (["other"], 7.0)):
        slots, nbytes = layout.plan([torch.ones(3)])
        arena = TARGET.arena(nbytes)
        layout.views(arena, slots)[0].fill_(7.0 if names == ["weight"] else 9.0)
        answer = contestant.request(
            "state", 5, [arena.fd], names=names, extra=[], slots=slots, arena=arena.handle(),
            assign=False,
        )
        arena.close()
        assert answer["missing"] == ([] if names == ["weight"] else ["other"])
        side.run(0)
        assert float(side.outputs(0)[0][0, 0]) == expected


def test_two_contestants_do_not_meet(pool: Pool, tmp_path: Path) -> None:
    sides = []
    for i in (1, 2):
        client = pool.fresh()
        load(client, tmp_path / str(i), f"return x * {i}")
        sides.append(entrant(client, torch.ones(2, 3)))
    for i, side in enumerate(sides, 1):
        side.run(0)
        assert float(side.outputs(0)[0][0, 0]) == i
    for side in sides:
        side.client.kill()
        side.forget()


def test_a_fresh_process_is_quick(pool: Pool) -> None:
    pool.fresh().kill()
    start = time.monotonic()
    client = pool.fresh()
    client.request("drop", 5)
    assert time.monotonic() - start < 2.0, "forked, not started: importing torch takes longer"
    client.kill()


def test_the_environment_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("LD_PRELOAD", "hook.so")
    found = child_environment(3)
    assert not {"HF_TOKEN", "LD_PRELOAD"} & set(found)
    assert found["OMP_NUM_THREADS"] == "3" and found["OMP_WAIT_POLICY"] == "passive"


def test_a_closed_pool_makes_no_more() -> None:
    with Pool("cpu", 1) as made:
        pass
    with pytest.raises(HarnessError, match="closed"):
        made.fresh()


def test_the_local_client_answers_alike() -> None:
    client = LocalClient(TARGET, 1)
    client.session.forward = lambda x: x + 1
    x = torch.ones(2, 3)
    side = Entrant(client, TARGET, 5.0, trusted=True)
    tensors: list[torch.Tensor] = []
    side.place_inputs(0, layout.describe((x,), tensors), [x])
    side.place_outputs([x], 2)
    assert side.run(0)["copied"] and torch.equal(side.outputs(0)[0], x + 1)
    assert side.call(0, 1).event_ms > 0
    assert side.burst([0, 0]) > 0 and side.burst([0], copy_only=True) > 0
    side.drop()
    assert client.answers()
