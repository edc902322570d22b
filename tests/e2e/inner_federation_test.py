"""Two facilities, and two groups of ranks of one: the same model, round after round.

    inner_federation_test.py BIN_FOLDER SOURCE_FOLDER
"""
import json
import pathlib
import tempfile

from lab import BIN, encode, make_model, run

ROUNDS, STEPS = 3, 6
COMMON = """
project: inner
model: model
rounds: {rounds}
aggregation: {{update: weights, update_dtype: fp32, publish_dtype: fp32}}
policy: {{on_missing: fail, max_attempts: 1, poll_interval: 50ms}}
training:
  steps_per_round: {steps}
  batch_size: 8
  learning_rate: 1e-2
  keep_optimizer: {keep}
  groups: {{count: {groups}, interval: {steps}, weighting: tokens}}
facilities:
"""
FACILITY = '  {name}: {{workdir: work, world_size: {ranks}, environment: {{OMP_NUM_THREADS: "1"}}, data: {{train: [{train}]}}}}\n'


def federate(folder, facilities, groups, keep="true"):
    """facilities: name -> its token files. Returns the model's bytes."""
    folder.mkdir()
    make_model(folder)
    for name, seed, count in (("alba", 1, 64), ("brno", 2, 40)):
        encode(folder, name, seed, count)
    text = COMMON.format(rounds=ROUNDS, steps=STEPS, groups=groups, keep=keep)
    for name, files in facilities.items():
        text += FACILITY.format(name=name, ranks=groups, train=", ".join(files))
    (folder / "xffl.yaml").write_text(text)
    run(BIN / "xffl", "run", "-p", folder)
    return (folder / "runs/0001/CURRENT/model.safetensors").read_bytes()


def events(folder):
    return [json.loads(line) for line in run(BIN / "xffl", "inspect", folder / "runs/0001/journal.db", "--json").splitlines()]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        between = federate(folder / "between", {"alba": ["alba.tokens"], "brno": ["brno.tokens"]}, 1)
        inside = federate(folder / "inside", {"alba": ["alba.tokens", "brno.tokens"]}, 2)
        assert inside == between, "one job of two groups is not two facilities"
        fresh = federate(folder / "fresh", {"alba": ["alba.tokens", "brno.tokens"]}, 2, keep="false")
        assert fresh != inside, "the optimizer begins anew, and nothing changes?"
        for path in ("between", "inside"):
            kept = sorted(p.name[:6] for p in (folder / path).glob("work/inner/*/alba/optimizer/*"))
            assert kept == [f"r{ROUNDS - 1:04d}-", f"r{ROUNDS:04d}-"], kept
        reports = [e["payload"]["report"] for e in events(folder / "inside") if e["kind"] == "update_accepted"]
        assert [r["samples"] for r in reports] == [2 * 8 * STEPS] * ROUNDS, reports
        assert not list((folder / "fresh").glob("work/inner/*/alba/optimizer"))
    print("ok")


main()
