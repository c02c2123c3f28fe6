"""Where and when candidates are judged: in this process, or in a pool of others."""

from cuda_agent.workers.base import Worker
from cuda_agent.workers.inline import InlineWorker
from cuda_agent.workers.local import LocalPool

__all__ = ["InlineWorker", "LocalPool", "Worker"]
