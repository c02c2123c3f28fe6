"""A toolbox on a made-up judge, and on a real one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agents_fakes import PROBLEM, SPACE, FakePlanner, FakeWorker, verdict

from cuda_agent.agents.loop import Room
from cuda_agent.agents.tools.judging import Bench
from cuda_agent.agents.tools.toolbox import Toolbox
from cuda_agent.agents.tools.workfolder import prepare
from cuda_agent.evaluation.apart import Compiled, Examined
from cuda_agent.records import Candidate, Counters, Finding, Problem, Sanitizer, Verdict
from cuda_agent.store import Store
from cuda_agent.targets import DeviceFacts

FACTS = DeviceFacts("cpu", "made up", "x86-64", 2, 32, 1 << 20, 1 << 30)
MODEL_NEW = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    ms = {ms}\n"


@dataclass
class TextWorker(FakeWorker):
    """Reads from the candidate itself how fast it is: `ms = 0.5`, or a status that it names."""

    examinations: int = 0

    def evaluate(self, candidate: Candidate) -> Verdict:
        if candidate.plan is not None:
            return super().evaluate(candidate)
        self.judged.append(candidate.hash)
        text = candidate.files["model_new.py"]
        word = text.rpartition("ms = ")[2].strip() if "ms = " in text else "1"
        if word == "interrupt":
            raise KeyboardInterrupt
        if word.isalpha() or "_" in word:
            return verdict(1, word, candidate.hash, self.problem, self.tier)
        return verdict(float(word), "ok", candidate.hash, self.problem, self.tier)

    def compile_only(self, candidate: Candidate) -> Compiled:
        broken = "broken" in candidate.files["model_new.py"]
        return Compiled("model_new.py:1: it is broken" if broken else "", 0.1, "single")

    def examine(self, candidate: Candidate, counters: bool, memory: bool) -> Examined:
        self.examinations += 1
        return Examined(
            Counters("made up", "", {"cycles": 10.0, "instructions": 20.0}) if counters else None,
            Sanitizer("checker", "", (Finding("heap", "line 3"),)) if memory else None,
        )


def bench(folder: Path, problem: Problem = PROBLEM, worker: TextWorker | None = None) -> Bench:
    worker = worker or TextWorker(problem)
    planner = FakePlanner(problem)
    room = Room(Store(folder / "runs"), "run", "key", problem.hash, planner.assemble, worker)
    return Bench(problem, room, worker, SPACE)


def toolbox(folder: Path, on: Bench | None = None, name: str = "work") -> Toolbox:
    on = on or bench(folder)
    return Toolbox(prepare(folder / name, on, FACTS, FakePlanner().regions()), on, "test")
