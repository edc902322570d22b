"""The programs under test and their device; imports neither torch nor transformers, which take many seconds.

XFFL_TEST_BIN (or XFFL_BIN) is the folder of the programs, XFFL_TEST_DEVICE the device that they run on: cpu or cuda.
"""

import json
import os
import pathlib
import subprocess

DEVICE = os.environ.get("XFFL_TEST_DEVICE") or "cpu"
BIN = pathlib.Path(os.environ.get("XFFL_TEST_BIN") or os.environ.get("XFFL_BIN")
                   or f"build/{'trainer-cuda' if DEVICE == 'cuda' else 'trainer-cpu'}/bin")
assert DEVICE in ("cpu", "cuda"), f"XFFL_TEST_DEVICE is '{DEVICE}', expected cpu or cuda"


def reason_to_skip():
    """The reason to skip tests; empty if the device exists. A program built without CUDA is an error, not a reason."""
    if DEVICE == "cpu":
        return ""
    program = BIN / "xffl-train"
    found = json.loads(subprocess.run([program, "info", "--json"], check=True, capture_output=True, text=True, timeout=120).stdout)
    assert found["cuda"], f"{program} is built without CUDA: set XFFL_TEST_BIN to the programs of the preset trainer-cuda"
    return "" if found["gpus"] else "no GPU is visible here"
