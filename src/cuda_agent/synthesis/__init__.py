"""Problems made from the operators of the installed torch: crawled, composed, filtered, written."""

from cuda_agent.synthesis.filters import FILTERS
from cuda_agent.synthesis.publish import pack
from cuda_agent.synthesis.run import MAX_OPS, Options, Progress, synthesize

__all__ = ["FILTERS", "MAX_OPS", "Options", "Progress", "pack", "synthesize"]
