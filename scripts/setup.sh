#!/bin/sh
# Makes $VENV with cuda-agent and the right torch: a CUDA build where there is an NVIDIA GPU, else
# whatever build of the pinned version pip finds (a CPU build with TORCH_INDEX set to PyTorch's CPU
# wheels). Ends with an error, not with a wrong build.
set -eu

fail() { echo "setup: $1" >&2; exit 1; }

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    || fail "$PYTHON is missing or older than 3.11; install Python 3.11+ or set PYTHON=/path/to/python3.11"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null \
    || fail "$PYTHON has no venv module; on Debian and Ubuntu: apt install python3-venv"
command -v "${CXX:-c++}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 \
    || fail "no C++ compiler found; on Debian and Ubuntu: apt install g++"

gpu=no
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; then gpu=yes; fi

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip="$VENV/bin/pip --disable-pip-version-check"

echo "setup: installing $TORCH (NVIDIA GPU here: $gpu)"
$pip install --quiet "$TORCH" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
extras=""
[ "$gpu" = no ] || extras="[cuda]"
$pip install --quiet -e ".$extras"

if [ "$gpu" = yes ]; then
    "$VENV/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' \
        || fail "there is an NVIDIA GPU, but $TORCH came as a CPU build; unset TORCH_INDEX and run 'make clean setup'"
fi
"$VENV/bin/python" -c 'import torch; print("setup: torch", torch.__version__, "in", __import__("sys").prefix)'
