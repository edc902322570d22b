#!/usr/bin/env bash
# Measures how a training's time falls with the number of ranks: a table and a plot (SVG).
#
#   scripts/scaling.sh --model DIR --tokens FILE [--ranks 1 2 4] [--runs 3] [--set batch_size=32] [--output DIR]
#   scripts/scaling.sh --job FILE [--launch 'srun --ntasks={ranks} xffl-train --benchmark --job {job}']
#
# Trains the same job with each number of ranks, on this machine or with --launch as jobs, several times in turns. The batch stays the same, so
# the work does, too. Prints medians: time, speed-up, efficiency, tokens per second and loss. docs/user/scaling.md explains them.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/../tests/bench/scaling.py" "$@"
