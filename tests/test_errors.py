"""The error tree: as drawn on top of its file, and what the command line makes of each branch."""

from __future__ import annotations

import argparse
import inspect
import re

import pytest

from cuda_agent import cli, errors
from cuda_agent.errors import CudaAgentError, HarnessError, UserError

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, CudaAgentError)
}


def test_the_drawing_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    parents = ["CudaAgentError"]
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│ ├└─]+) (\w+)", line)
        if match and match[2] in CLASSES:
            depth = len(match[1]) // 4 + 1
            drawn[match[2]] = parents[depth - 1]
            parents[depth:] = [match[2]]
    actual = {n: k.__base__.__name__ for n, k in CLASSES.items() if k is not CudaAgentError}
    assert drawn == actual


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_exit_status_of_each(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = CLASSES[name]
    error = kind("timeout", "it\nbroke") if name == "ContestantFailure" else kind("it\nbroke")

    def run(args: argparse.Namespace) -> int:
        raise error

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=run)
    monkeypatch.setattr(cli, "parser", lambda: parser)
    if issubclass(kind, UserError) or name == "CaptureError":
        assert cli.main([]) == 2
        assert capsys.readouterr().err == "cuda-agent: it broke\n"
    elif kind is HarnessError:
        assert cli.main([]) == 3
        assert "it broke" in capsys.readouterr().err
    else:  # a bug of ours: shown with its traceback
        with pytest.raises(kind):
            cli.main([])
