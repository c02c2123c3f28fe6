"""`python -m cuda_agent` is the same as the `cuda-agent` command."""

from __future__ import annotations

import sys

from cuda_agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
