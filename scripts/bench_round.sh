#!/usr/bin/env bash
# Measures the cost of a round without training and averaging, on two facilities of scripts/dev_cluster.sh, compared with scp.
#
#   scripts/bench_round.sh [--megabytes 1 500] [--networks lan gigabit wan] [--rounds 3] [--repeats 2] [--keep-allocation 0s 60s]
#                          [--pack never always] [--step 3.6e-4] [--build build/coordinator]
#
# Prints medians for each model size, on the LAN and at 50 ms and 1 Gbit/s: the time from the plan of a round to its publication, without
# the run time of the trainer (a trivial one) and without averaging; and the parts of that time. scp copies the model to both facilities at
# once, and back, with its default cipher and with the cheapest one. --keep-allocation: kept allocations for the next round
# (slurm.keep_allocation); one row for each value, without first rounds. --pack: the coordinator sends global models as differences
# (transfer.pack), also without first rounds. The weights are N(0, 0.02) in BF16 and each facility's updates N(0, --step): after a round
# with one facility 10 % of the words are unchanged (7 to 14 % after 50 to 200 steps of a real training at a learning rate of 1e-5), with
# the mean of two facilities 14 %. Unpacking counts for the round. docs/benchmarks.md has results. Has the requirements of
# scripts/dev_cluster.sh; exit code 77, with the reason, on a machine without the requirements.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case " $* " in *" --build "* | *" --help "* | *" -h "*) ;; *) scripts/bootstrap.sh build && scripts/build.sh coordinator xffl xffl-fake-trainer ;; esac
exec python3 tests/bench/round_bench.py "$@"
