#!/bin/sh
# interop.sh PROGRAM DEPS VERSION: runs interop.py with transformers of major version VERSION, or skips without it.
set -eu
program=$1 deps=$2 version=$3
python=${XFFL_PYTHON:-$deps/venv/bin/python}
here=$(dirname "$0")
if [ ! -x "$python" ]; then
  echo "SKIP: no Python at $python (scripts/bootstrap.sh makes it; XFFL_PYTHON names another)"
  exit 0
fi
if [ "$version" = 4 ]; then
  if [ ! -d "$deps/transformers4" ]; then
    echo "SKIP: no transformers 4 in $deps/transformers4"
    exit 0
  fi
  PYTHONPATH=$deps/transformers4${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH
fi
if ! problem=$("$python" -c 'import torch, safetensors, transformers; transformers.LlamaForCausalLM' 2>&1); then
  echo "SKIP: $python cannot import torch, safetensors and transformers $version: $(echo "$problem" | tail -n 1)"
  exit 0
fi
exec "$python" "$here/interop.py" "$program" "$version"
