"""The command line: one thin file for each verb."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from cuda_agent import __version__
from cuda_agent.errors import CaptureError, HarnessError, UserError

SUCCESS, NOT_FASTER, BAD_INPUT, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130

_EPILOG = """exit status: 0 success; 1 no faster solution (optimize) or a candidate that fails
(evaluate); 2 bad input; 3 failure of cuda-agent itself; 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit status (see --help)."""
    args = parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except (UserError, CaptureError) as error:
        print(f"cuda-agent: {sentence(error)}", file=sys.stderr)
        return BAD_INPUT
    except HarnessError as error:
        print(f"cuda-agent: its own machinery failed: {sentence(error)}", file=sys.stderr)
        return BROKEN
    except KeyboardInterrupt:
        print("cuda-agent: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        sys.stderr.close()
        return 128 + signal.SIGPIPE
    return status


def parser() -> argparse.ArgumentParser:
    # Imported here: `cuda-agent --version` needs no torch, and importing this package does nothing.
    from cuda_agent.cli import (
        doctor,
        episodes,
        evaluate,
        mcp,
        optimize,
        record,
        report,
        skills,
        synthesize,
        train,
    )

    top = argparse.ArgumentParser(
        prog="cuda-agent", epilog=_EPILOG,
        description="Turns PyTorch modules into verified, faster kernels.",
    )
    top.add_argument("--version", action="version", version=f"cuda-agent {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    verbs_in_order = (
        optimize, evaluate, synthesize, train, record, mcp, report, episodes, skills, doctor,
    )
    for verb in verbs_in_order:
        verb.add_parser(verbs)
    return top


def sentence(error: Exception) -> str:
    """One line, whatever the message held."""
    return " ".join(str(error).split())
