"""CUDA row kernels on a GPU: every case with the default knobs and each knob changed once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rows_cases import CASES, Case, region_of
from rows_check import H200, Buffers, run_written, settings_near_default, skill_of

from cuda_agent import runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_on_device(case: Case, tmp_path: Path) -> None:
    region = region_of(case)
    skill = skill_of(region)
    for number, knobs in enumerate(settings_near_default(skill.knobs(region, H200))):
        written = skill.write(region, knobs, H200)
        folder = tmp_path / str(number)
        for name, text in written.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        buffers = Buffers(case, region)
        run_written(written, buffers, runtime.load(str(folder / "model_new.py")), "cuda")
        buffers.check()
