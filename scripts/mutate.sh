#!/usr/bin/env bash
# Puts one-line bugs into a copy of the sources, one at a time, and prints how many of them the tests notice.
#
#   scripts/mutate.sh [N] [MODULE]     N mutants at random (0 or nothing: all), of one module
#
# tests/mutants/mutants.toml has the mutants; XFFL_MUTANTS names another file. `scripts/mutate.sh --help` prints all options. The
# exit code is 1 when the tests miss a severe mutant or more than a tenth of all. All mutants take hours on two cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/bootstrap.sh test >/dev/null
exec python3 scripts/mutate.py "$@"
