#!/usr/bin/env bash
# What a round costs beside training and averaging, on two facilities of scripts/dev_cluster.sh, beside scp of the same bytes.
#
#   scripts/bench_round.sh [--megabytes 1 500] [--networks lan gigabit wan] [--rounds 3] [--repeats 2] [--keep-allocation 0s 60s]
#                          [--pack never always] [--step 3.6e-4] [--build build/coordinator]
#
# Prints medians for each size of model, on the LAN and at 50 ms and 1 Gbit/s: everything from the plan of a round to its
# publication, without the time in which the trainer ran (a trivial one) and the averaging; and how it is made up. scp
# carries the model to both facilities at once, and back, with its own cipher and with the cheapest. --keep-allocation: jobs keep their nodes
# for the next round (slurm.keep_allocation); a row for each value, without its first rounds. --pack: global models travel as
# differences (transfer.pack); without first rounds, too. The weights are N(0, 0.02) in BF16 and each facility's updates
# N(0, --step): after a round with one facility a tenth of the words is unchanged (7 to 14 % after 50 to 200 steps of a
# real training at a learning rate of 1e-5), of the mean of two 14 %. Unpacking counts as the round's. docs/benchmarks.md has what we saw.
# Needs what the bed needs; exit code 77, with the reason, where it cannot be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case " $* " in *" --build "* | *" --help "* | *" -h "*) ;; *) scripts/build.sh coordinator xffl xffl-fake-trainer ;; esac
exec python3 tests/bench/round_bench.py "$@"
