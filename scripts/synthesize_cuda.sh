#!/bin/sh
# 6,000 problems on one GPU. Stops by itself after MINUTES; run it again and it goes on, until it exits with 0.
# Needs no pyarrow: afterwards, where it is installed, `cuda-agent synthesize --pack --out DIR` writes the Parquet file.
#   sh scripts/synthesize_cuda.sh [DIR]
set -eu
DIR=${1:-runs/synthesis-cuda}
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m cuda_agent synthesize \
    --count "${COUNT:-6000}" --out "$DIR" --target cuda --suite-to-avoid ${AVOID:-ours} \
    --workers "${WORKERS:-16}" --minutes "${MINUTES:-9}" --no-parquet
