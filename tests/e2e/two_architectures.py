"""A federation of this machine's trainer and one for another architecture, under emulation, gives the model of two native ones.

    two_architectures.py BIN_FOLDER SOURCE_FOLDER EMULATED_TRAINER

scripts/check_aarch64.sh trainer starts it.
"""
import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file

from lab import BIN, encode, make_model, run

EMULATED = pathlib.Path(sys.argv[3])
ROUNDS = 2
PROJECT = """
project: two
model: model
rounds: {rounds}
aggregation: {{update: {update}, update_dtype: fp32, publish_dtype: fp32}}
policy: {{on_missing: fail, max_attempts: 1, poll_interval: 50ms}}
training: {{steps_per_round: 4, batch_size: 8, learning_rate: 1e-2}}
facilities:
  alba: {{workdir: work, environment: {{OMP_NUM_THREADS: "1"}}, data: {{train: [alba.tokens], validation: {{it: brno.tokens}}}}}}
  brno: {{workdir: work, {trainer}environment: {{OMP_NUM_THREADS: "1"}}, data: {{train: [brno.tokens], validation: {{cs: alba.tokens}}}}}}
"""


def federate(folder, update, trainer=""):
    """Returns the published model and the reports by round and facility."""
    folder.mkdir()
    make_model(folder)
    for name, seed, count in (("alba", 1, 64), ("brno", 2, 40)):
        encode(folder, name, seed, count)
    (folder / "xffl.yaml").write_text(PROJECT.format(rounds=ROUNDS, update=update, trainer=trainer))
    run(BIN / "xffl", "run", "-p", folder)
    run(BIN / "xffl", "verify", "-p", folder, "--replay")
    events = [json.loads(line) for line in run(BIN / "xffl", "inspect", folder / "runs/0001/journal.db", "--json").splitlines()]
    reports = [event["payload"]["report"] for event in events if event["kind"] == "update_accepted"]
    return (load_file(folder / "runs/0001/CURRENT/model.safetensors"),
            {(report["key"]["round"], report["key"]["facility"]): report for report in reports})


def main():
    with tempfile.TemporaryDirectory() as name:
        for update in ("delta", "weights"):
            native, _ = federate(pathlib.Path(name) / f"native-{update}", update)
            mixed, reports = federate(pathlib.Path(name) / f"mixed-{update}", update, f"trainer: {{program: {EMULATED}}}, ")
            assert len(reports) == 2 * (ROUNDS + 1), reports.keys()  # the last is an evaluation
            for (number, facility), report in reports.items():
                system = report["environment"]["system"]
                assert ("aarch64" in system) == (facility == "brno"), (number, facility, system)
            assert native.keys() == mixed.keys()
            largest = max((native[tensor] - mixed[tensor]).abs().max().item() for tensor in native)
            # Adam takes the sign of a tiny gradient, which may differ: 1e-5 is a thousandth of one step.
            assert largest < 1e-5, largest
            assert any(not torch.equal(native[tensor], mixed[tensor]) for tensor in native), "was the emulated trainer used?"
            print(f"two architectures, update: {update}: weights differ by at most {largest:.1e}")


main()
