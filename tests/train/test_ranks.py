"""Two and four ranks over Gloo against one, with the same global batch."""

import json
import os
import signal
import socket
import subprocess
import time

import pytest
import torch
from safetensors.torch import load_file

import harness


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    base_hash = harness.make_model(folder / "base", **harness.variants()["grouped_queries_odd_head_dim"])
    tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(40))
    validation = harness.write_tokens(folder / "v.tokens", harness.make_sequences(9, seed=5))

    def job(name, **changes):
        return harness.make_job(folder / name, folder / "base", base_hash, tokens, [("it", validation)],
                                **{**dict(steps=12, batch_size=10, micro_batch_size=3), **changes})

    return folder, job, harness.train(job("one"))


@pytest.mark.parametrize("changes", [{}, dict(deterministic=True), dict(precision="bf16", sharding="full")],
                         ids=["plain", "deterministic", "bf16_full"])
def test_results_are_reproducible(setting, changes):
    folder, job, _ = setting
    name = "-".join(map(str, ["again", *changes.values()]))
    first, second = (harness.train(job(f"{name}{i}", **changes), 2) for i in range(2))
    assert second.report["update_sha256"] == first.report["update_sha256"]
    assert second.losses == first.losses and second.report["validation"] == first.report["validation"]


@pytest.mark.parametrize("world_size", [2, 4])
def test_several_ranks_follow_one_rank(setting, world_size):
    folder, job, one = setting
    many = harness.train(job(f"world{world_size}"), world_size)
    assert many.report["world_size"] == world_size
    assert many.report["tokens"] == one.report["tokens"] and many.report["samples"] == 120
    for mine, theirs in zip(many.metrics, one.metrics, strict=True):
        assert mine["tokens"] == theirs["tokens"] and mine["accuracy"] == theirs["accuracy"]
        assert harness.relative(mine["loss"], theirs["loss"]) < 1e-5
        assert harness.relative(mine["grad_norm"], theirs["grad_norm"]) < 1e-3
    for key in ("train_accuracy", "train_accuracy_last"):
        assert many.report[key] == one.report[key]
    for key in ("accuracy_before", "accuracy_after"):
        assert many.report["validation"][0][key] == one.report["validation"][0][key]
    for key in ("nll_before", "nll_after"):
        assert harness.relative(many.report["validation"][0][key], one.report["validation"][0][key]) < 1e-5
    weights = [load_file(o.folder / "update" / "model.safetensors") for o in (many, one)]
    for name, mine in weights[0].items():
        assert (mine - weights[1][name]).norm() < 1e-4 * weights[1][name].norm(), name


def test_accuracy_is_hugging_faces(setting):
    """Before the first step, and of the validation sets before and after the training; the set's batch size changes nothing."""
    folder, job, one = setting
    sequences, batch = harness.make_sequences(9, seed=5), harness.make_sequences(40)
    accuracies = [harness.hf_accuracy(harness.load(place), sequences) for place in (folder / "base", one.folder / "update")]
    assert [one.report["validation"][0][f"accuracy_{when}"] for when in ("before", "after")] == accuracies
    path = job("accuracy", batch_size=40, steps=1)
    document = json.loads(path.read_text())
    document["training"]["validation_batch_size"] = 7
    path.write_text(json.dumps(document))
    whole = harness.train(path)
    assert whole.metrics[0]["accuracy"] == whole.report["train_accuracy"] == harness.hf_accuracy(harness.load(folder / "base"), batch)
    assert whole.report["validation"][0]["accuracy_before"] == accuracies[0]


def test_times_and_environment_are_reported(setting):
    folder, job, _ = setting
    began = time.monotonic()
    report = harness.train(job("times", validation_interval=4), 2).report
    elapsed = time.monotonic() - began
    assert report["samples_per_second"] == pytest.approx(report["samples"] / report["train_seconds"])
    assert report["tokens_per_second"] == pytest.approx(report["tokens"] / report["train_seconds"])
    assert report["tokens_per_second_per_rank"] == pytest.approx(report["tokens_per_second"] / 2)
    assert 0 < report["startup_seconds"] < elapsed and 0 < report["evaluation_seconds"] < elapsed
    assert report["startup_seconds"] + report["train_seconds"] + report["evaluation_seconds"] < elapsed
    environment = report["environment"]
    assert environment["host"] == socket.gethostname() and environment["cpus"] >= 1
    assert environment["backend"] == ("nccl" if harness.DEVICE == "cuda" else "gloo")


def test_more_ranks_than_sequences(setting):
    folder, job, _ = setting
    one = harness.train(job("few1", batch_size=3, steps=4))
    four = harness.train(job("few4", batch_size=3, steps=4), 4)
    for mine, theirs in zip(four.losses, one.losses, strict=True):
        assert harness.relative(mine, theirs) < 1e-5


def test_micro_batches_change_nothing(setting):
    folder, job, one = setting
    whole = harness.train(job("whole", micro_batch_size=10))
    for mine, theirs in zip(whole.losses, one.losses, strict=True):
        assert harness.relative(mine, theirs) < 1e-5


def test_the_same_job_gives_the_same_bytes(setting):
    folder, job, one = setting
    again = harness.train(job("again"))
    assert again.report["update_sha256"] == one.report["update_sha256"]
    assert again.losses == one.losses


def test_rounds_continue_where_the_last_ended(setting):
    """Steps 0..11 in one job see the same batches as 0..5 and 6..11 in two."""
    folder, job, one = setting
    first = harness.train(job("first", steps=6))
    second = harness.train(job("second", steps=6, first_step=6))
    assert first.losses == one.losses[:6]
    assert [m["tokens"] for m in first.metrics + second.metrics] == [m["tokens"] for m in one.metrics]
    assert second.metrics[0]["step"] == 7


@pytest.mark.parametrize("world_size,sharding", [(2, "none"), (3, "none"), (3, "full")])
def test_evaluate_gives_the_same_on_several_ranks(setting, world_size, sharding):
    folder, _, _ = setting
    arguments = ["--sharding", sharding, "--model", folder / "base", "--tokens", folder / "v.tokens", "--batch-size", 2, "--json"]
    one = json.loads(harness.run([harness.BIN / "xffl-train", "evaluate", *arguments]).stdout)
    rank_of = dict(WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(harness.free_port()))
    ranks = [subprocess.Popen([str(word) for word in (harness.BIN / "xffl-train", "evaluate", *arguments)],
                              env={**os.environ, **rank_of, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                              stdout=subprocess.PIPE, text=True) for rank in range(world_size)]
    output = harness.outputs(ranks, 60)
    assert [rank.returncode for rank in ranks] == [0] * world_size
    assert output[1:] == [""] * (world_size - 1), "only the first rank prints"
    many = json.loads(output[0])
    assert many["tokens"] == one["tokens"] and len(many["per_sequence"]) == len(one["per_sequence"]) == 9
    for mine, theirs in zip([many["nll"], *many["per_sequence"]], [one["nll"], *one["per_sequence"]], strict=True):
        assert harness.relative(mine, theirs) < 1e-6


def test_a_dead_rank_ends_the_others(setting):
    folder, job, _ = setting
    ranks = harness.start_ranks(job("dead", steps=100000), 2, XFFL_COMM_TIMEOUT="20")
    metrics = folder / "dead" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while (not metrics.exists() or not metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    ranks[1].send_signal(signal.SIGKILL)
    output = ranks[0].communicate(timeout=60)[0]
    ranks[1].communicate()
    assert ranks[0].returncode == 9, output
    assert "rank 0 of 2" in output and "a rank died" in output
    assert not (folder / "dead" / "report.json").exists()


def test_a_missing_rank_is_an_error(setting):
    folder, job, _ = setting
    environment = dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(harness.free_port()),
                       XFFL_COMM_TIMEOUT="2")
    result = harness.run([harness.BIN / "xffl-train", "--job", job("lonely")], check=False,
                         env={**os.environ, **environment}, timeout=60)
    assert result.returncode == 9 and "rendezvous with the other ranks" in result.stderr
    assert "frame #" not in result.stderr, "stack traces are for bugs"
    path = job("lonely-check")
    (path.parent / "out").mkdir()
    result = harness.run([harness.BIN / "xffl-train", "check", "--job", path], check=False,
                         env={**os.environ, **environment}, timeout=60)
    report = json.loads((path.parent / "out" / "check.json").read_text())
    assert result.returncode == 9 and report["part"] == "rendezvous" and "rendezvous with the other ranks" in report["problem"]


def test_a_port_in_use_is_an_error(setting):
    folder, job, _ = setting
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        environment = dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(other.getsockname()[1]),
                           XFFL_COMM_TIMEOUT="2")
        result = harness.run([harness.BIN / "xffl-train", "--job", job("port")], check=False,
                             env={**os.environ, **environment}, timeout=60)
    assert result.returncode == 9 and "choose another MASTER_PORT" in result.stderr and "frame #" not in result.stderr
