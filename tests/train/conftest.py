"""On a GPU only the tests marked `gpu` run: a short selection, because each xffl-train process must initialize CUDA.

Without a GPU the exit code is 77 and the reason is printed.
"""

import sys

import pytest

import device


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: also runs with XFFL_TEST_DEVICE=cuda")
    if reason := device.reason_to_skip():
        sys.__stdout__.write(f"SKIPPED: {reason}\n")  # past pytest's capture
        sys.__stdout__.flush()
        pytest.exit(reason, returncode=77)


def pytest_collection_modifyitems(config, items):
    if device.DEVICE == "cpu":
        return
    chosen = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
