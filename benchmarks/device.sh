#!/usr/bin/env bash
# What only a GPU shows, in under nine minutes; nothing is fetched. Figures: README.md.
set -uo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
python3 -m pytest -q -m cuda -p no:cacheprovider tests
python3 benchmarks/gpu.py
python3 benchmarks/training.py --device cuda --shapes 7b --parts spark --rounds 2
