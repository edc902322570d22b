"""configs/trainers/xffl_job.py does its part of docs/reference/job_json.md; references: xffl-train, torch and safetensors."""

import json
import pathlib
import random
import re
import signal
import sys
import time
import weakref

import numpy as np
import pytest
import safetensors.torch
import torch

import harness

TRAINERS = pathlib.Path(__file__).parents[2] / "configs/trainers"
sys.path[:0] = [str(TRAINERS), str(pathlib.Path(__file__).parents[1] / "tokens")]
import permutation_reference  # noqa: E402
import xffl_job  # noqa: E402

EXAMPLE = (sys.executable, TRAINERS / "hf_trainer.py")


@pytest.fixture
def setting(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    base_hash = harness.make_model(tmp_path / "base")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(30))

    def job(name, **changes):
        return harness.make_job(tmp_path / name, tmp_path / "base", base_hash, tokens,
                                **{**dict(steps=3, validation=[("it", tokens)]), **changes})

    yield job
    for number, handler in handlers.items():
        signal.signal(number, handler)


def warn_in_call(number, function):
    """The function, whose call of this number, from 1, begins with the warning signal."""
    calls = []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            signal.raise_signal(signal.SIGUSR1)
        return function(*arguments)

    return call


def outcome(job, ranks):
    output = harness.outputs(ranks, 300)
    return harness.Outcome(job.parent, [rank.returncode for rank in ranks], output)


def trained(job):
    """Weights that differ from those of the input model."""
    base = xffl_job.Tensors(job.path("base_model_path"))
    return {name: base[name] * np.float32(1.01) for name in base.keys()}


def test_numbers_are_those_of_the_reference():
    for size, seed, epoch in ((10, 0, 0), (10, 1, 1), (1000, 2**64 - 1, 7)):
        assert xffl_job.permutation(size, seed, epoch) == permutation_reference.permutation(size, seed, epoch)
    values = torch.randn(10000, generator=torch.Generator().manual_seed(1))
    assert xffl_job.encoded(values.numpy(), "BF16") == values.bfloat16().view(torch.int16).numpy().tobytes()
    assert xffl_job.encoded(values.numpy(), "F16") == values.half().view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tensors_of_several_files_are_those_of_safetensors(tmp_path, dtype):
    harness.make_model(tmp_path, dtype=dtype, max_shard_size="100KB")
    found, files = xffl_job.Tensors(tmp_path), list(tmp_path.glob("*.safetensors"))
    expected = {name: value for file in files for name, value in safetensors.torch.load_file(file).items()}
    assert len(files) > 1 and found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype == dtype and torch.equal(torch.from_numpy(found[name]), value.float()), name


def test_sequences_of_several_shards_are_one_list(tmp_path):
    expected = harness.make_sequences(14)
    shards = [harness.write_tokens(tmp_path / name, part) for name, part in (("a", expected[:5]), ("b", expected[5:]))]
    for limit, count in ((0, 14), (7, 7), (20, 14)):
        found = xffl_job.Sequences(shards, limit)
        assert [found[i][0].tolist() for i in range(len(found))] == expected[:count]


def test_masked_and_packed_sequences_have_the_losses_of_xffl_train(setting, tmp_path):
    sequences = harness.make_sequences(30)
    lines = [{"input_ids": ids, "labels": [-100 if i % 5 < 2 else ids[i] for i in range(len(ids))]} for ids in sequences]
    (tmp_path / "masked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shards = [("packed", harness.write_tokens(tmp_path / "packed", sequences, packed=16))]
    for name, pack in (("masked", "--no-pack"), ("both", "--pack")):
        harness.run([harness.BIN / "xffl-tokenize", "encode", "--format", "ids", "--vocab-size", 97, "--no-bos", "--no-eos",
                     pack, "--sequence-length", 40, "--input", tmp_path / "masked.jsonl", "--output", tmp_path / name])
        shards.append((name, tmp_path / name))
    job = xffl_job.load(setting("job", validation=shards))
    found = job.evaluate(xffl_job.model_with(job))
    for name, shard in shards:
        expected = harness.evaluate(job.path("base_model_path"), shard)
        assert found[name][1] == expected["tokens"], name
        assert harness.relative(found[name][0], expected["nll"]) < harness.TOLERANCE["nll"], name


@pytest.mark.parametrize(
    "schedule",
    [dict(kind="constant"), dict(kind="linear"), dict(kind="cosine"), dict(kind="wsd"), dict(kind="wsd", decay_ratio=0.25)],
    ids=lambda schedule: "-".join(map(str, schedule.values())),
)
def test_the_learning_rate_is_that_of_xffl_train(setting, schedule):
    schedule = dict(warmup_steps=3, total_steps=10, min_ratio=0.1, **schedule)
    file = setting("job", steps=14, batch_size=1, validation=[], schedule=schedule)
    job = xffl_job.load(file)
    expected = [metric["lr"] for metric in harness.train(file).metrics]
    assert [job.learning_rate(step) for step in job.steps()] == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert len(set(expected)) > 3


@pytest.mark.parametrize("world_size, max_grad_norm", [(1, 0.0), (2, 1.0)])  # 0: without clipping
def test_an_epochs_part_gives_the_losses_of_xffl_train(setting, world_size, max_grad_norm):
    schedule = dict(kind="linear", warmup_steps=2, total_steps=6, min_ratio=0.1)
    settings = dict(first_step=2, max_grad_norm=max_grad_norm, schedule=schedule)
    ours, job = harness.train(setting("ours", **settings)), setting("theirs", **settings)
    found = outcome(job, harness.start_ranks(job, world_size, program=EXAMPLE))
    assert found.codes == [0] * world_size, found.output
    for mine, theirs in zip(found.losses, ours.losses, strict=True):
        assert harness.relative(mine, theirs) < 1e-4
    for key in ("key", "base_model_sha256", "steps", "stopped_early", "samples", "tokens", "nodes", "data_files", "data_bytes", "data_sha256"):
        assert found.report[key] == ours.report[key]
    assert found.report["world_size"] == world_size and found.metrics[0]["tokens_per_second"] > 0
    for name in ("nll_before", "nll_after"):
        assert harness.relative(found.report["validation"][0][name], ours.report["validation"][0][name]) < 1e-4


def test_a_signal_to_another_rank_ends_all(setting):
    job = setting("job", steps=100000)
    ranks = harness.start_ranks(job, 2, program=EXAMPLE)
    try:
        deadline = time.monotonic() + 120
        while not (job.parent / "metrics.jsonl").exists() and time.monotonic() < deadline and not any(r.poll() for r in ranks):
            time.sleep(0.05)
        ranks[1].send_signal(signal.SIGUSR1)
        found = outcome(job, ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert found.codes == [0, 0], found.output
    assert found.report["stopped_early"] is True
    harness.expect_measured_before(found.report, job)
    assert 1 <= found.report["steps"] == len(found.metrics) < 100000


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t, first: t.pop(first), "missing"),
        (lambda t, first: t.update(more=t[first]), "unknown"),
        (lambda t, first: t.update({first: t[first] * np.float32("nan")}), "has NaN"),
        (lambda t, first: t.update({first: t[first][:1]}), "has the shape"),
    ],
)
def test_a_wrong_tensor_leaves_no_update(setting, change, message):
    job = xffl_job.load(setting("job", steps=1, validation=[]))
    tensors = trained(job)
    change(tensors, next(iter(tensors)))
    with pytest.raises(xffl_job.JobError, match=message):
        job.finish(tensors, [1.0], 8, 9)
    assert sorted(p.name for p in job.folder.iterdir()) == ["job.json"]


def test_a_number_beyond_fp16_leaves_no_update(setting):
    job = xffl_job.load(setting("job", steps=1, validation=[], update_dtype="fp16"))
    tensors = trained(job)
    first = next(iter(tensors))
    tensors[first] = np.full_like(tensors[first], 65536)
    with pytest.raises(xffl_job.JobError, match="a number beyond F16"):
        job.finish(tensors, [1.0], 8, 9)
    assert sorted(p.name for p in job.folder.iterdir()) == ["job.json"]


def test_a_damaged_input_model_is_reported(setting, tmp_path):
    """The coordinator sends the model again because of model.failure."""
    job = xffl_job.load(setting("job"))
    model, failure = tmp_path / "base/model.safetensors", tmp_path / "job/model.failure"
    whole = model.read_bytes()
    for data, hashed, message in ((whole[:-1], False, "missing or of another size"),
                                  (whole[:-1] + bytes([whole[-1] ^ 1]), True, "with other bytes")):
        model.write_bytes(data)
        with pytest.raises(xffl_job.JobError, match=f"model.safetensors {message}"):
            job.verify_model(hash_files=hashed)
        assert f"model.safetensors {message}" in failure.read_text()
        failure.unlink()


UNSUPPORTED = {  # keys of `training` with a value that plain AdamW on float32 weights does not honour
    "lora.rank": 4, "groups.count": 2, "pipeline.stages": 2, "freeze": ["model.norm.weight"], "proximal": 0.01,
    "document_mask": True, "max_tokens": 1, "validation_interval": 1, "early_stop_patience": 1, "keep_optimizer": True,
    "masters": "none", "epochs": 0.5, "optimizer": "sgd", "moment_dtype": "bf16", "gradient_dtype": "bf16",
}


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["version"], 6, r"version: should be one of \(4, 5\), found 6"),
        (["version"], 4.5, "version should be a natural number"),
        (["key"], None, "key should be an object"),
        (["train_paths"], [1], r"train_paths\[0\] should be"),
        (["training", "lora"], None, "training.lora should be an object"),
        (["training", "schedule", "min_ratio"], "x", "training.schedule.min_ratio should be a number"),
        (["training", "steps"], -1, "training.steps should be a natural number"),
        (["base_model_sha256"], "0" * 64, "expected a model with the root hash"),
        (["on_stop"], "checkpoint", "leave out policy.on_walltime"),
        (["base_model_packed"], {}, "leave out transfer.pack"),
        *[(["training", *key.split(".")], value, f"training.{key.partition('.')[0]} is not done")
          for key, value in UNSUPPORTED.items()],
    ],
)
def test_a_wrong_job_is_one_line(setting, path, value, message):
    file = setting("job")
    document = inner = json.loads(file.read_text())
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    file.write_text(json.dumps(document))
    with pytest.raises(xffl_job.JobError, match=message):
        xffl_job.load(file)
    assert (file.parent / "model.failure").exists() == (path == ["base_model_sha256"])


def test_keys_of_a_later_release_are_ignored(setting):
    file = setting("job")
    document = json.loads(file.read_text())
    for part in (document, document["key"], document["training"], document["training"]["lora"], document["validation"][0]):
        part["of_a_later_release"] = [{"a": 1}]
    file.write_text(json.dumps(document))
    job = xffl_job.load(file)
    assert len(list(job.batches())) == 3
    job.finish(trained(job), [1.0] * 3, 24, 9, {"it": (1.0, 9)}, {"it": (1.0, 9)})
    assert "of_a_later_release" not in (file.parent / "report.json").read_text()


def test_a_finished_job_is_not_done_again(setting):
    file = setting("job", document_mask=True)
    (file.parent / "report.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        xffl_job.load(file)
    assert ended.value.code == 0


def test_a_delta_replaces_the_update_of_a_killed_attempt(setting):
    job = xffl_job.load(setting("job", steps=1, validation=[], update_kind="delta", update_dtype="bf16", unknown_key=1))
    (job.folder / "update").mkdir()
    (job.folder / "update/old").write_text("1")
    tensors = trained(job)
    job.finish(tensors, [1.0], 8, 9)
    assert sorted(p.name for p in (job.folder / "update").iterdir()) == ["config.json", "manifest.json", "model.safetensors"]
    base = safetensors.torch.load_file(job.path("base_model_path") / "model.safetensors")
    for name, value in safetensors.torch.load_file(job.folder / "update/model.safetensors").items():
        assert torch.equal(value, (torch.from_numpy(tensors[name]) - base[name]).bfloat16())


def test_a_signal_after_the_last_step_keeps_the_update(setting):
    job = xffl_job.load(setting("job"))
    results = dict(losses=[1.0] * 3, samples=24, tokens=9, before={"it": (1.0, 9)}, after={})
    with pytest.raises(xffl_job.JobError, match="of every validation set"):
        job.finish(trained(job), **results)
    job.stopping = True
    job.finish(trained(job), **results)
    report = json.loads((job.folder / "report.json").read_text())
    assert report["steps"] == 3 and report["stopped_early"] is True
    assert report["validation"] == [{"name": "it", "tokens": 9, "nll_before": 1.0, "nll_after": 0.0}]
    assert (job.folder / "update/model.safetensors").exists()


def test_a_signal_in_an_evaluation_leaves_out_the_incomplete_sets(setting, tmp_path):
    tokens = tmp_path / "t.tokens"  # 30 sequences: 8 blocks
    job = xffl_job.load(setting("job", validation=[("first", tokens), ("second", tokens)]))
    model, measure = xffl_job.model_with(job), job.measure
    before = job.evaluate(model)
    job.measure = warn_in_call(10, measure)
    after = job.evaluate(model)
    assert list(before) == ["first", "second"] and after == {"first": before["first"]}
    job.finish(trained(job), [1.0] * 3, 24, 9, before, after)
    report = json.loads((job.folder / "report.json").read_text())
    assert report["steps"] == 3 and report["stopped_early"] is True
    loss, count = before["first"]
    assert report["validation"] == [{"name": "first", "tokens": count, "nll_before": loss, "nll_after": loss},
                                    {"name": "second", "tokens": count, "nll_before": loss, "nll_after": 0.0}]


def test_a_signal_in_a_job_that_only_evaluates_leaves_no_report(setting):
    job = xffl_job.load(setting("job", steps=0))
    model, job.measure = xffl_job.model_with(job), warn_in_call(2, job.measure)
    with pytest.raises(SystemExit) as ended:
        job.finish({}, [], 0, 0, job.evaluate(model))
    assert ended.value.code == 75 and sorted(p.name for p in job.folder.iterdir()) == ["job.json"]


# The program of ranks, of which the last gets the signal in its first block after the training.
WARNED_AFTER_TRAINING = f"""
import os, signal, sys
sys.path.insert(0, {str(TRAINERS)!r})
import {{module}}, xffl_job
evaluate, measure, evaluations = xffl_job.Job.evaluate, xffl_job.Job.measure, []

def counted_evaluate(*arguments):
    evaluations.append(1)
    return evaluate(*arguments)

def warned_measure(job, *arguments):
    if len(evaluations) == 2 and job.rank == job.world_size - 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    return measure(job, *arguments)

xffl_job.Job.evaluate, xffl_job.Job.measure = counted_evaluate, warned_measure
xffl_job.main_of({{module}}.train, honoured=["on_stop"])
"""


@pytest.mark.parametrize("module", ["hf_trainer", "hf_callback"])
def test_a_signal_to_another_rank_ends_the_last_validation(setting, tmp_path, module):
    (tmp_path / "program.py").write_text(WARNED_AFTER_TRAINING.format(module=module))
    tokens = harness.write_tokens(tmp_path / "v.tokens", harness.make_sequences(33))  # 5 blocks of rank 0, 4 of rank 1
    job = setting("job", validation=[("it", tokens)])
    found = outcome(job, harness.start_ranks(job, 2, program=(sys.executable, tmp_path / "program.py")))
    assert found.codes == [0, 0], found.output
    assert found.report["steps"] == 3 and found.report["stopped_early"] is True
    harness.expect_measured_before(found.report, job)
    assert (job.parent / "update/model.safetensors").exists()


def test_a_signal_ends_the_hash_of_the_data(setting, monkeypatch):
    job, results = xffl_job.load(setting("job")), {"it": (1.0, 9)}
    monkeypatch.setattr(xffl_job, "data_identity", warn_in_call(1, xffl_job.data_identity))
    job.finish(trained(job), [1.0] * 3, 24, 9, results, results)
    report = json.loads((job.folder / "report.json").read_text())
    assert report["stopped_early"] is False and len(report["validation"]) == 1 and "data_sha256" not in report
    assert (job.folder / "update/model.safetensors").exists()


def test_a_rank_that_sees_one_gpu_has_the_local_rank_0():
    step = {"SLURM_PROCID": "13", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "5"}
    torchrun = {"RANK": "13", "WORLD_SIZE": "16", "LOCAL_RANK": "5"}
    for devices, local in (({"ROCR_VISIBLE_DEVICES": "5"}, 0), ({"CUDA_VISIBLE_DEVICES": "GPU-0a1b"}, 0),
                           ({"ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5", "HIP_VISIBLE_DEVICES": "5"}, 0),
                           ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}, 5), ({"CUDA_VISIBLE_DEVICES": ""}, 5),
                           ({"CUDA_VISIBLE_DEVICES": "-1"}, 5), ({}, 5)):
        for ranks in (step, torchrun):
            assert xffl_job.ranks_of({**ranks, **devices}) == (13, 16, local), devices


def test_damaged_files_are_refused(setting, tmp_path):
    tokens, source = tmp_path / "t.tokens", random.Random(1)
    whole = tokens.read_bytes()
    job = xffl_job.load(setting("job"))
    for data in (b"", whole[:-1], whole + b"x", b"Y" + whole[1:], whole[:32] + b"\xff" * 8 + whole[40:]):
        tokens.write_bytes(data)
        with pytest.raises(xffl_job.JobError, match="t.tokens"):
            list(job.batches())
    model = tmp_path / "base/model.safetensors"
    whole = model.read_bytes()
    for _ in range(200):  # a header of random bytes is refused or read, without another error
        at = source.randrange(300)
        model.write_bytes(whole[:at] + bytes([source.randrange(256)]) + whole[at + 1 :])
        try:
            tensors = xffl_job.Tensors(tmp_path / "base")
            [tensors[name] for name in tensors.keys()]
        except xffl_job.JobError as problem:
            assert "model.safetensors" in str(problem)


# Scripts that know nothing of xffl.

SCRIPT = pathlib.Path(__file__).with_name("plain_script.py")


def program(*arguments):
    """As xffl starts it: `--job FILE` comes last."""
    return (sys.executable, TRAINERS / "xffl_job.py", "run", "--dataset-flag", "--data", "--", SCRIPT, *arguments)


@pytest.mark.parametrize("world_size, save", [(1, "state"), (2, "hf")])
def test_an_unchanged_script_gives_the_model_of_xffl_train(setting, world_size, save):
    ours, job = harness.train(setting("ours")), setting("theirs")
    found = outcome(job, harness.start_ranks(job, world_size, program=program("--save", save)))
    assert found.codes == [0] * world_size, found.output
    for key in ("key", "base_model_sha256", "steps", "stopped_early", "samples", "tokens", "data_sha256"):
        assert found.report[key] == ours.report[key]
    for name in ("nll_before", "nll_after"):
        assert harness.relative(found.report["validation"][0][name], ours.report["validation"][0][name]) < 1e-4
    assert found.report["program_sha256"] == xffl_job.sha256_of(SCRIPT) and found.report["world_size"] == world_size
    theirs = safetensors.torch.load_file(job.parent / "update/model.safetensors")
    for name, value in safetensors.torch.load_file(ours.folder / "update/model.safetensors").items():
        assert torch.allclose(value, theirs[name], atol=1e-4), name
    assert not (job.parent / "script").exists()


def test_a_script_starts_after_the_measurement_of_a_model_that_is_released(setting, tmp_path, monkeypatch):
    make, models, started = xffl_job.model_with, [], tmp_path / "started"

    def model_with(*arguments):
        assert started.exists() == (len(models) == 1) and not any(model() for model in models)
        model = make(*arguments)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(xffl_job, "model_with", model_with)
    job = setting("job")
    xffl_job.run_main(["--", "sh", "-c", f'touch "{started}"; cp "$2/model.safetensors" "$6"', "script", "--job", str(job)])
    report = json.loads((job.parent / "report.json").read_text())
    assert len(models) == 2 and report["validation"][0]["nll_before"] == report["validation"][0]["nll_after"] > 0


def test_scripts_of_other_ranks_wait_for_the_measurement(setting, tmp_path):
    """Rank 0 measures for longer than ranks wait for each other; a script that starts earlier does not find `measured`."""
    job, measured = setting("job"), tmp_path / "measured"
    (tmp_path / "program.py").write_text(f"""
import pathlib, sys, time
sys.path.insert(0, {str(TRAINERS)!r})
import xffl_job
evaluate = xffl_job.Job.evaluate

def slow_evaluate(*arguments, **named):
    time.sleep(0 if pathlib.Path({str(measured)!r}).exists() else 12)
    pathlib.Path({str(measured)!r}).touch()
    return evaluate(*arguments, **named)

xffl_job.Job.evaluate = slow_evaluate
xffl_job.run_main(sys.argv[1:])
""")
    script = f'test -e "{measured}" || exit 3; if [ "$RANK" = 0 ]; then cp "$2/model.safetensors" "$6"; fi'
    words = (sys.executable, tmp_path / "program.py", "--timeout", "10", "--", "sh", "-c", script, "script")
    found = outcome(job, harness.start_ranks(job, 2, program=words))
    assert found.codes == [0, 0] and found.report["steps"] == 3, found.output


def test_a_model_is_measured_on_the_gpu_of_its_rank(setting, monkeypatch):
    job, devices = xffl_job.load(setting("job")), []
    job.local_rank = 5
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.nn.Module, "to", lambda model, device: devices.append(device) or model)
    xffl_job.model_with(job)
    assert devices == ["cuda:1"]


def test_a_script_that_fails_is_named(setting):
    job = setting("job")
    found = outcome(job, harness.start_ranks(job, program=program("--fail", "3")))
    assert found.codes == [1] and "plain_script.py ended with the exit code 3" in found.output[0], found.output
    assert found.report is None and not (job.parent / "update").exists()


def test_a_script_that_fails_on_another_rank_leaves_no_update(setting):
    job = setting("job")
    script = 'if [ "$RANK" = 0 ]; then cp "$2/model.safetensors" "$6"; fi; exit "$RANK"'  # $2: the model, $6: the output
    words = (sys.executable, TRAINERS / "xffl_job.py", "run", "--", "sh", "-c", script, "script")
    found = outcome(job, harness.start_ranks(job, 2, program=words))
    assert found.codes == [1, 1] and "the script sh ended with the exit code 1" in found.output[0], found.output
    assert found.report is None and not (job.parent / "update").exists()


@pytest.mark.parametrize(
    "save, message",
    [
        (lambda folder: None, "or one state dict .* found none"),
        (lambda folder: [torch.save({"a": torch.zeros(1)}, folder / name) for name in ("a.pt", "b.bin")], "found a.pt, b.bin"),
        (lambda folder: torch.save(pathlib.PurePosixPath("x"), folder / "a.pt"), "weights_only=True"),
        (lambda folder: (folder / "a.pt").write_bytes(b"x"), "weights_only=True"),
        (lambda folder: torch.save({"model": {"a": torch.zeros(1)}}, folder / "a.pt"), "expected a state dict"),
        (lambda folder: (folder / "a.safetensors").write_bytes(b"x"), "is not a safetensors file"),
    ],
)
def test_what_a_script_saves_is_data_alone(tmp_path, save, message):
    save(tmp_path)
    with pytest.raises(xffl_job.JobError, match=message):
        xffl_job.saved_tensors(tmp_path)


def test_the_steps_of_a_script_are_known_or_nothing_is_written(setting, tmp_path):
    job, state = xffl_job.load(setting("job")), tmp_path / "trainer_state.json"
    assert xffl_job.steps_saved(job, tmp_path) == 3
    for text, message in (("x", "trainer_state.json"), ('{"global_step": 4}', "from 0 to the job's 3 steps"), ('{"global_step": 2}', "did 2 of")):
        state.write_text(text)
        with pytest.raises(xffl_job.JobError, match=message):
            xffl_job.steps_saved(job, tmp_path)
    job.stopping = True
    assert xffl_job.steps_saved(job, tmp_path) == 2
    for text in (None, '{"global_step": 0}'):
        state.write_text(text) if text else state.unlink()
        with pytest.raises(SystemExit) as ended:
            xffl_job.steps_saved(job, tmp_path)
        assert ended.value.code == 75


def test_a_script_that_starts_after_the_warning_is_warned(setting, monkeypatch, capsys):
    write = xffl_job.write_dataset

    def write_and_warn(*arguments):
        signal.raise_signal(signal.SIGUSR1)
        return write(*arguments)

    monkeypatch.setattr(xffl_job, "write_dataset", write_and_warn)
    with pytest.raises(SystemExit) as ended:
        xffl_job.run_main(["--", "sh", "-c", "exec sleep 60", "--job", str(setting("job"))])
    assert ended.value.code == 75
    assert f"the script sh ended with the signal {signal.SIGUSR1:d} after the warning signal" in capsys.readouterr().err


def test_a_script_is_warned(setting):
    job = setting("job", steps=1000, first_step=2)
    rank = harness.start_ranks(job, program=program("--pause", "0.2"))[0]
    try:
        lines = []
        while not lines or not (lines[-1].startswith("step") or lines[-1] == ""):
            lines.append(rank.stdout.readline())
        rank.send_signal(signal.SIGUSR1)
        found = outcome(job, [rank])
    finally:
        rank.kill()
    assert found.codes == [0], (lines, found.output)
    steps = found.report["steps"]
    assert 1 <= steps < 1000 and found.report["stopped_early"] is True and found.report["samples"] == 8 * steps
    harness.expect_measured_before(found.report, job)
    assert found.report["tokens"] == harness.train(setting("ours", steps=steps, first_step=2)).report["tokens"]
