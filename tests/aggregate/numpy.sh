#!/bin/sh
# numpy.sh DEPS SCRIPT ARGUMENT...: runs SCRIPT, beside this file, in DEPS's Python, or says why not.
set -eu
python=${XFFL_PYTHON:-$1/venv/bin/python}
if [ ! -x "$python" ]; then
  echo "SKIP: no Python at $python (scripts/bootstrap.sh makes it; XFFL_PYTHON names another)"
  exit 0
fi
if ! problem=$("$python" -c 'import numpy' 2>&1); then
  echo "SKIP: $python cannot import numpy: $(echo "$problem" | tail -n 1)"
  exit 0
fi
script=$(dirname "$0")/$2
shift 2
exec "$python" "$script" "$@"
