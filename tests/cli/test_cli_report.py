"""`cuda-agent report RUN`: the same table and page from the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_fakes import Workers

from cuda_agent.cli import main


def test_report_again(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", str(problem), "--target", "cpu", "--budget", "4", "--json"]) == 0
    run_id = json.loads(capsys.readouterr().out)["run"]
    before = len(workers.judged)
    assert main(["report", run_id]) == 0
    out = capsys.readouterr().out
    assert "PyTorch eager" in out and f"runs/reports/{run_id}/report.html" in out
    first = Path("solutions/scaled_gelu/report.html").read_text()
    assert Path(f"runs/reports/{run_id}/report.html").read_text() == first
    assert main(["report", "--json", "--out", "page.html"]) == 0  # the newest run
    document = json.loads(capsys.readouterr().out)
    assert document["run"] == run_id and document["report"] == "page.html"
    assert Path("page.html").read_text() == first and len(workers.judged) == before


def test_unknown_run(workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nonsense"]) == 2
    assert "there is no run 'nonsense'" in capsys.readouterr().err
    assert main(["report"]) == 2
