"""Problems: read them, put them on a device, and ask whether they are worth judging."""

from cuda_agent.problems.dataset import dataset_problems
from cuda_agent.problems.execute import import_roots
from cuda_agent.problems.live import live_instance
from cuda_agent.problems.load import load_problem
from cuda_agent.problems.materialize import Instance, materialize
from cuda_agent.problems.probes import probe
from cuda_agent.problems.styles import STYLES
from cuda_agent.problems.suite import level_of, suite_problems

__all__ = [
    "STYLES",
    "Instance",
    "dataset_problems",
    "import_roots",
    "level_of",
    "live_instance",
    "load_problem",
    "materialize",
    "probe",
    "suite_problems",
]
