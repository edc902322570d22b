"""A federation of the built-in trainer and of one in Python on transformers, through the real programs.

    foreign_trainer_test.py BIN_FOLDER SOURCE_FOLDER      exit code 77: skipped, with the reason

The final model must load in transformers and give there the loss that xffl-train evaluate gives.
"""
import json
import math
import os
import pathlib
import sys
import tempfile

try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as problem:
    print(f"SKIPPED: {problem}; scripts/bootstrap.sh test installs it")
    sys.exit(77)

from lab import BIN, LENGTH, SOURCE, encode, make_model, run


def hf_loss(model_folder, sequences):
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    with torch.no_grad():
        ids = torch.tensor(sequences)
        return model(input_ids=ids, labels=ids).loss.item()


def simulate_in_an_image(folder):
    """`apptainer` is a stand-in: it keeps its options and starts the program of its image, this build's xffl-train."""
    bin_folder, image = folder / "bin", folder / "trainer.sif"
    bin_folder.mkdir()
    image.write_text("an image")
    stand_in = bin_folder / "apptainer"
    stand_in.write_text(f"""#!/bin/sh
printf '%s\\n' "$*" >>"{folder}/apptainer.log"
while [ "$1" != "{image}" ]; do shift; done
shift
PATH={BIN}:$PATH
exec "$@"
""")
    stand_in.chmod(0o755)
    path = {"env": {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}}
    inside = run(BIN / "xffl", "simulate", "-p", folder, "--facility", "alba", "--world-size", 2, "--image", image, "--nv", **path)
    assert "ranks                  2" in inside, inside
    started = (folder / "apptainer.log").read_text().splitlines()
    jobs = [line.rsplit(" ", 1)[1] for line in started]
    assert len(set(jobs)) == 2 and all(jobs.count(job) == 2 for job in jobs), "two ranks of the training and of the evaluation"
    for line in started:
        assert line.startswith("exec --nv --bind ") and f"--bind {folder}/simulations/work " in line, line
        assert f" {image} xffl-train --job " in line, line
    greeting = run(BIN / "xffl", "simulate", "--image", image, "--arguments", "sh", "-c", "echo rank $RANK", **path)
    assert "rank 0" in greeting, greeting
    run(BIN / "xffl", "simulate", "-p", folder, "--facility", "alba", "--image", folder / "none.sif", code=4)
    run(BIN / "xffl", "simulate", "-p", folder, "--facility", "alba", "--nv", code=2)


def unchanged_script(folder):
    """A script that knows nothing of xffl, with two ranks, beside the built-in trainer."""
    make_model(folder)
    for facility, seed in (("alba", 1), ("brno", 2)):
        encode(folder, facility, seed, 64)
    encode(folder, "validation", 1, 16)
    words = [sys.executable, f"{SOURCE}/configs/trainers/xffl_job.py", "run", "--dataset-flag", "--data", "--",
             f"{SOURCE}/tests/train/plain_script.py", "--lr", "1e-2"]
    (folder / "xffl.yaml").write_text(f"""
project: unchanged
model: model
rounds: 1
training: {{steps_per_round: 10, batch_size: 8, micro_batch_size: 4, learning_rate: 1e-2, validation_samples: 8}}
aggregation: {{publish_dtype: fp32}}
policy: {{on_missing: fail, max_attempts: 1, poll_interval: 100ms}}
facilities:
  alba:
    data: {{train: alba.tokens, validation: {{own: validation.tokens}}}}
  brno:
    trainer: {{command: {json.dumps(words)}}}
    world_size: 2
    data: {{train: brno.tokens, validation: {{own: validation.tokens}}}}
""")
    run(BIN / "xffl", "run", "-p", folder)
    status = json.loads(run(BIN / "xffl", "status", "-p", folder, "--json"))
    assert status["state"] == "completed" and status["rounds_published"] == 1, status
    reports = {name: facility["report"] for name, facility in status["rounds_detail"][0]["facilities"].items()}
    assert reports["brno"]["trainer"].startswith("plain_script.py") and reports["brno"]["world_size"] == 2, reports
    assert reports["alba"]["tokens"] == reports["brno"]["tokens"] == 10 * 8 * (LENGTH - 1), reports
    table = {(entry["round"], entry["facility"]): entry["loss"] for entry in status["validation"]}
    assert sorted(table) == [(number, name) for number in (0, 1) for name in ("alba", "brno")], table
    for number in (0, 1):  # the evaluation is of one model at both
        assert math.isclose(table[number, "alba"], table[number, "brno"], rel_tol=1e-4), table
    assert table[1, "alba"] < table[0, "alba"], table


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_model(folder)
        for facility, seed in (("alba", 1), ("brno", 2)):
            encode(folder, facility, seed, 64)
        encode(folder, "validation", 1, 16)
        (folder / "xffl.yaml").write_text(f"""
project: mixed
model: model
rounds: 2
training: {{steps_per_round: 10, batch_size: 8, micro_batch_size: 4, learning_rate: 1e-2, validation_samples: 8}}
aggregation: {{publish_dtype: fp32}}
policy: {{on_missing: fail, max_attempts: 1, poll_interval: 100ms}}
facilities:
  alba:
    data: {{train: alba.tokens, validation: {{own: validation.tokens}}}}
  brno:
    trainer: {{command: ['{sys.executable}', '{SOURCE}/configs/trainers/hf_trainer.py']}}
    world_size: 2
    data: {{train: brno.tokens, validation: {{own: validation.tokens}}}}
""")
        run(BIN / "xffl", "config", "validate", "-p", folder)
        run(BIN / "xffl", "run", "-p", folder)
        status = json.loads(run(BIN / "xffl", "status", "-p", folder, "--json"))
        assert status["state"] == "completed" and status["rounds_published"] == 2, status
        for detail in status["rounds_detail"]:
            assert detail["participants"] == ["alba", "brno"], detail
            reports = {name: facility["report"] for name, facility in detail["facilities"].items()}
            assert reports["alba"]["trainer"].startswith("xffl-train"), reports
            assert reports["brno"]["trainer"].startswith("hf_trainer.py"), reports
            assert reports["brno"]["world_size"] == 2, reports
            # Both facilities measured the same model on the same sequences before their training.
            before = [reports[f]["validation"][0]["nll_before"] for f in ("alba", "brno")]
            assert math.isclose(*before, rel_tol=1e-4), before
            assert reports["alba"]["tokens"] == reports["brno"]["tokens"] == 10 * 8 * (LENGTH - 1), reports

        # The evaluation of the last model, in a job without training.
        evaluation = {name: facility["report"] for name, facility in status["evaluation"]["facilities"].items()}
        for report in evaluation.values():
            assert report["steps"] == report["tokens"] == 0 and report["update_sha256"] == "", report
        table = {(entry["round"], entry["facility"]): entry for entry in status["validation"]}
        assert sorted(table) == [(number, name) for number in (0, 1, 2) for name in ("alba", "brno")], table
        for number in (0, 1, 2):
            both = [table[number, name]["loss"] for name in ("alba", "brno")]
            assert math.isclose(*both, rel_tol=1e-4), both
            assert math.isclose(table[number, "alba"]["perplexity"], math.exp(both[0])), table
        assert table[2, "alba"]["loss"] < table[1, "alba"]["loss"] < table[0, "alba"]["loss"], table
        assert table[2, "alba"]["tokens"] == table[2, "brno"]["tokens"] == 8 * (LENGTH - 1), table

        final = folder / "runs/0001/CURRENT"
        sequences = [json.loads(line) for line in open(folder / "validation.jsonl")]
        expected = hf_loss(final, sequences)
        found = json.loads(run(BIN / "xffl-train", "evaluate", "--model", final, "--tokens", folder / "validation.tokens", "--json"))
        assert math.isclose(found["nll"], expected, rel_tol=1e-4), (found["nll"], expected)
        assert found["tokens"] == len(sequences) * (LENGTH - 1) and len(found["per_sequence"]) == len(sequences)
        assert expected < hf_loss(folder / "model", sequences), "the federation did not learn"

        # One facility's training on this machine, with two ranks.
        simulated = run(BIN / "xffl", "simulate", "-p", folder, "--facility", "alba", "--world-size", 2)
        assert "tokens/s" in simulated and "ranks                  2" in simulated, simulated
        simulate_in_an_image(folder)
    with tempfile.TemporaryDirectory() as name:
        unchanged_script(pathlib.Path(name))
    print("ok")


main()
