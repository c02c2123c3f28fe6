"""Every error of the project, one class for each boundary that can break.

CudaAgentError
├── UserError                what the user gave cannot be used: one sentence, exit status 2
│   ├── ProblemError         the problem file, module or inputs
│   │   └── ProblemTooLarge  parameters, inputs and outputs do not fit the device
│   ├── CandidateError       the candidate's files
│   ├── TargetUnavailable    the requested hardware, compiler or driver is not here
│   ├── SettingsError        an option or plan that does not exist or contradicts another
│   └── OutputError          a result could not be written; what stood there before is kept
├── CaptureError             torch.export could not turn the module into a graph
├── CompileFailure           the candidate's sources do not compile (verdict: compile_error)
├── ContestantFailure        the candidate's process failed (verdict: its `status`)
└── HarnessError             our own machinery failed; retried, never charged to the candidate
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuda_agent.records import Diagnostic


class CudaAgentError(Exception):
    """Base of every error that this package raises on purpose."""


class UserError(CudaAgentError):
    """Bad input. The message is one sentence: what, where, what was expected, how to mend it."""


class ProblemError(UserError):
    """The problem file, module or inputs cannot be used."""


class ProblemTooLarge(ProblemError):
    """Parameters, inputs and outputs do not fit the device's free memory."""


class CandidateError(UserError):
    """The candidate's files cannot be used."""


class TargetUnavailable(UserError):
    """A hardware target that was asked for is not available, with the reason."""


class SettingsError(UserError):
    """An option, knob or plan that does not exist or contradicts another."""


class OutputError(UserError):
    """A result could not be written. What stood there before is kept."""


class CaptureError(CudaAgentError):
    """torch.export could not turn the module into a graph."""


class CompileFailure(CudaAgentError):
    """The candidate's sources do not compile.

    `log` is the compiler's output, `diagnostic` its first cause where one was found in it.
    """

    def __init__(
        self, message: str, log: str = "", diagnostic: Diagnostic | None = None
    ) -> None:
        super().__init__(message)
        self.log = log
        self.diagnostic = diagnostic


class ContestantFailure(CudaAgentError):
    """The candidate's process raised, died, ran out of memory or overran its deadline.

    `status` is the verdict's status: runtime_error, out_of_memory, timeout or cheating; `log` the
    end of what a process that died had printed.
    """

    def __init__(self, status: str, message: str, log: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.log = log


class HarnessError(CudaAgentError):
    """Our own machinery failed; the evaluation is retried and never charged to the candidate."""
