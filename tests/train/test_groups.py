"""A federation inside one job: groups of ranks against facilities, data parallelism and plain torch."""

import json
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

import harness


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    base_hash = harness.make_model(folder / "base", **harness.variants()["everything"])
    sequences = {"a": harness.make_sequences(24, seed=1, lengths=(2, 40)), "b": harness.make_sequences(17, seed=2, lengths=(2, 12))}
    paths = {name: harness.write_tokens(folder / f"{name}.tokens", lines) for name, lines in sequences.items()}
    validation = harness.write_tokens(folder / "v.tokens", harness.make_sequences(9, seed=5))
    count = 0

    def job(train, name=None, groups=None, **changes):
        nonlocal count
        count += 1
        base_groups = dict(count=1, interval=1, exchange="weights", weighting="equal", outer={})
        outer = dict(kind="average", learning_rate=1.0, momentum=0.9, beta1=0.9, beta2=0.99, epsilon=1e-8)
        merged = {**base_groups, **(groups or {})}
        merged["outer"] = {**outer, **merged["outer"]}
        return harness.make_job(folder / (name or f"job{count}"), folder / "base", base_hash, paths["a"], [("it", validation)],
                                **{**dict(train_paths=[str(paths[t]) if t in paths else str(t) for t in train], groups=merged,
                                          steps=4, batch_size=8, micro_batch_size=4, weight_decay=0.1), **changes})

    return folder, job


def weights(folder):
    result = {}
    for path in sorted(folder.glob("*.safetensors")):
        result |= load_file(path)
    return result


def expect_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def distance(found, expected, base):
    """The difference of two trained models, relative to the length of the training path."""
    difference = sum((found[n].double() - expected[n].double()).square().sum() for n in expected)
    moved = sum((expected[n].double() - base[n].double()).square().sum() for n in expected)
    return (difference / moved).sqrt().item()


def aggregate(folder, reports, jobs, weighting):
    shares = [str(report["tokens"]) if weighting == "tokens" else "1" for report in reports]
    harness.run([harness.BIN / "xffl", "aggregate", "--out", folder, "--dtype", "fp32", "--weights", ",".join(shares),
                 *(j.parent / "update" for j in jobs)])
    return weights(folder)


@pytest.mark.parametrize("weighting", ["tokens", "equal"])
@pytest.mark.parametrize("world_size,changes", [(2, {}), (4, {}), (4, dict(sharding="full")), (2, dict(precision="bf16")),
                                                (4, dict(sharding="hybrid", shard_group_size=1, offload="optimizer"))],
                         ids=["two_ranks", "four_ranks", "four_ranks_full", "bf16", "hybrid_offloaded"])
def test_one_job_of_two_groups_equals_two_facilities(setting, world_size, changes, weighting):
    """Bit for bit: the groups' mean is computed like the coordinator's."""
    folder, job = setting
    facilities = [job([name], **changes) for name in ("a", "b")]
    alone = [harness.train(one, world_size // 2) for one in facilities]
    groups = job(["a", "b"], groups=dict(count=2, interval=4, weighting=weighting), **changes)
    together = harness.train(groups, world_size)
    mean = aggregate(groups.parent / "mean", [o.report for o in alone], facilities, weighting)
    expect_equal(weights(groups.parent / "update"), mean)
    for key in ("tokens", "samples"):
        assert together.report[key] == sum(o.report[key] for o in alone)
    assert alone[0].report["tokens"] != alone[1].report["tokens"], "else the weights make no difference"
    assert together.report["steps"] == 4
    for i, loss in enumerate(together.losses):
        ours = sum(o.losses[i] * o.metrics[i]["tokens"] for o in alone) / sum(o.metrics[i]["tokens"] for o in alone)
        assert harness.relative(loss, ours) < 1e-12


def test_groups_exchange_trained_parameters_only(setting):
    """Adapters, whole in one group and sharded in the other world, against their mean in float64."""
    folder, job = setting
    lora = dict(lora=dict(rank=4, alpha=8.0, dropout=0.0, target_modules=["q_proj", "down_proj"]))
    facilities = [job([name], **lora) for name in ("a", "b")]
    tokens = [harness.train(one, 2).report["tokens"] for one in facilities]
    groups = job(["a", "b"], groups=dict(count=2, interval=4, weighting="tokens"), sharding="full", **lora)
    harness.train(groups, 4)
    one, other = (weights(f.parent / "update") for f in facilities)
    mean = {name: ((one[name].double() * tokens[0] + other[name].double() * tokens[1]) / sum(tokens)).float() for name in one}
    assert all("lora" in name for name in mean)
    expect_equal(weights(groups.parent / "update"), mean)


def test_remaining_steps_are_exchanged_at_the_end(setting):
    """6 steps with an exchange every 4: the last 2 are exchanged too, and all ranks validate the mean."""
    folder, job = setting
    whole = job(["a", "b"], groups=dict(count=2, interval=4, weighting="tokens"), steps=6)
    outcome = harness.train(whole, 2)
    found = harness.evaluate(whole.parent / "update", folder / "v.tokens")["nll"]
    assert harness.relative(outcome.report["validation"][0]["nll_after"], found) < 1e-6
    other = job(["a", "b"], groups=dict(count=2, interval=6, weighting="tokens"), steps=6)
    assert harness.train(other, 2).report["update_sha256"] != outcome.report["update_sha256"]


@pytest.mark.parametrize("dealt", [False, True])
def test_train_samples_limit_each_group(setting, dealt):
    """The limit applies to a group's own paths and to its share of a common path."""
    folder, job = setting
    a, b = harness.make_sequences(24, seed=1, lengths=(2, 40)), harness.make_sequences(17, seed=2, lengths=(2, 12))
    parts = (a[0:10:2], a[1:10:2]) if dealt else (a[:5], b[:5])
    shorter = [harness.write_tokens(folder / f"shorter-{dealt}-{i}.tokens", part) for i, part in enumerate(parts)]
    settings = dict(groups=dict(count=2, interval=2, weighting="tokens"), steps=6)
    found = harness.train(job(["a"] if dealt else ["a", "b"], train_samples=5, **settings), 2)
    expected = harness.train(job(shorter, **settings), 2)
    assert found.losses == expected.losses
    for key in ("update_sha256", "tokens", "samples"):
        assert found.report[key] == expected.report[key]
    whole = harness.train(job(["a"] if dealt else ["a", "b"], **settings), 2)
    assert whole.losses != found.losses, "else the limit makes no difference"


@pytest.mark.parametrize("weighting", ["tokens", "equal"])
def test_exchanged_gradients_equal_data_parallelism(setting, weighting):
    """Every batch is the whole data set, so both trainings see the same sequences."""
    folder, job = setting
    lengths = (2, 40) if weighting == "tokens" else (20, 20)
    shard = harness.write_tokens(folder / f"dealt-{weighting}.tokens", harness.make_sequences(8, seed=9, lengths=lengths))
    changes = dict(steps=6, micro_batch_size=8)
    plain = job([shard], batch_size=8, **changes)
    expected = harness.train(plain, 2)
    groups = job([shard], batch_size=4, groups=dict(count=2, exchange="gradients", weighting=weighting), **changes)
    found = harness.train(groups, 2)
    for mine, theirs in zip(found.losses, expected.losses, strict=True):
        assert harness.relative(mine, theirs) < 1e-6
    for mine, theirs in zip(found.metrics, expected.metrics, strict=True):
        assert harness.relative(mine["grad_norm"], theirs["grad_norm"]) < 1e-5
    for key in ("tokens", "samples", "steps"):
        assert found.report[key] == expected.report[key]
    base = weights(folder / "base")
    assert distance(weights(groups.parent / "update"), weights(plain.parent / "update"), base) < 1e-3


def reference(folder, data, outer, rounds, interval):
    """DiLoCo in plain torch: each batch is all of a group's sequences."""
    model = harness.load(folder / "base")
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    shared = {name: torch.nn.Parameter(p.clone()) for name, p in anchor.items()}
    optimizer = outer(list(shared.values()))
    replicas = [harness.load(folder / "base") for _ in data]
    inner = [torch.optim.AdamW(r.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0) for r in replicas]
    tokens = [sum(len(ids) - 1 for ids in sequences) for sequences in data]
    losses = []
    for _ in range(rounds):
        for _ in range(interval):
            total = 0.0
            for replica, step, sequences, count in zip(replicas, inner, data, tokens):
                step.zero_grad()
                loss = sum(harness.hf_sum(replica, ids)[0] for ids in sequences) / count
                loss.backward()
                torch.nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
                step.step()
                total += loss.item() * count
            losses.append(total / sum(tokens))
        named = [dict(r.named_parameters()) for r in replicas]
        for name, p in shared.items():
            mean = sum(n[name].detach() * c for n, c in zip(named, tokens)) / sum(tokens)
            p.grad = p.detach() - mean
        optimizer.step()
        with torch.no_grad():
            for n in named:
                for name, p in shared.items():
                    n[name].copy_(p)
    return losses, {name: p.detach() for name, p in shared.items()}


OUTER = {
    "nesterov": (dict(kind="nesterov", learning_rate=0.7, momentum=0.9),
                 lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True)),
    "sgd": (dict(kind="sgd", learning_rate=0.5, momentum=0.6), lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.6)),
    "adam": (dict(kind="adam", learning_rate=2e-3, beta1=0.8, beta2=0.9, epsilon=1e-3),
             lambda p: torch.optim.Adam(p, lr=2e-3, betas=(0.8, 0.9), eps=1e-3)),
}


@pytest.mark.parametrize("name", OUTER)
@pytest.mark.parametrize("world_size,sharding", [(2, "none"), (4, "full")])
def test_outer_optimizers_equal_torchs(setting, name, world_size, sharding):
    folder, job = setting
    settings, outer = OUTER[name]
    data = [harness.make_sequences(4, seed=s, lengths=length) for s, length in ((11, (5, 30)), (12, (4, 12)))]
    paths = [harness.write_tokens(folder / f"diloco{i}.tokens", lines) for i, lines in enumerate(data)]
    mine = job(paths, groups=dict(count=2, interval=3, weighting="tokens", outer=settings), steps=9, batch_size=4,
               weight_decay=0.0, sharding=sharding)
    outcome = harness.train(mine, world_size)
    losses, expected = reference(folder, data, outer, rounds=3, interval=3)
    for found, wanted in zip(outcome.losses, losses, strict=True):
        assert harness.relative(found, wanted) < 1e-6
    found = weights(mine.parent / "update")
    wanted = {name: expected[name] for name in found}
    assert distance(found, wanted, weights(folder / "base")) < 2e-3
    plain = job(paths, groups=dict(count=2, interval=3, weighting="tokens"), steps=9, batch_size=4, weight_decay=0.0)
    harness.train(plain, 2)
    assert distance(weights(plain.parent / "update"), wanted, weights(folder / "base")) > 5e-2, "an average is something else"


def test_fewer_paths_than_groups_are_interleaved(setting):
    """Sequence i belongs to group i modulo the number of groups."""
    folder, job = setting
    sequences = harness.make_sequences(13, seed=21)
    whole = harness.write_tokens(folder / "whole.tokens", sequences)
    dealt = [harness.write_tokens(folder / f"dealt{g}.tokens", sequences[g::2]) for g in range(2)]
    settings = dict(count=2, interval=4)
    by_path, by_hand = job([whole], groups=settings), job(dealt, groups=settings)
    harness.train(by_path, 2), harness.train(by_hand, 2)
    expect_equal(weights(by_path.parent / "update"), weights(by_hand.parent / "update"))


LONG = dict(steps=24, micro_batch_size=8, groups=dict(count=2, interval=4, weighting="tokens",
                                                      outer=dict(kind="nesterov", learning_rate=0.7)))


def wait_for_steps(job, steps, ranks):
    metrics = job.parent / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < steps:
        assert time.monotonic() < deadline
        assert all(r.poll() is None for r in ranks), "ended before: " + ranks[0].communicate()[0]
        time.sleep(0.005)


def test_a_killed_job_of_groups_resumes_to_the_same_bits(setting):
    folder, job = setting
    expected = harness.train(job(["a", "b"], **LONG), 4)
    changes = dict(**LONG, checkpoint_interval=3, state_path="../killed-state")
    harness.kill_at(12, job(["a", "b"], **changes), 4)
    assert list((folder / "killed-state").glob("step-????????/group-0002.part-*"))
    second = job(["a", "b"], **{**changes, "sharding": "full"})
    found = harness.train(second, 4)
    assert any("resumed from a checkpoint" in output for output in found.output)
    assert len(found.losses) < changes["steps"]
    assert found.report["update_sha256"] == expected.report["update_sha256"]
    for key in ("tokens", "samples", "train_loss", "validation"):
        assert found.report[key] == expected.report[key]


def test_on_a_stop_all_groups_exchange_and_save(setting):
    folder, job = setting
    stopped = job(["a", "b"], **{**LONG, "steps": 100000})
    ranks = harness.start_ranks(stopped, 2)
    wait_for_steps(stopped, 9, ranks)
    ranks[1].send_signal(signal.SIGUSR1)
    output = harness.outputs(ranks, 120)
    assert [rank.returncode for rank in ranks] == [0, 0], output
    report = json.loads((stopped.parent / "report.json").read_text())
    assert report["stopped_early"]
    harness.expect_measured_before(report, stopped)
    again = job(["a", "b"], **{**LONG, "steps": report["steps"]})
    assert harness.train(again, 2).report["update_sha256"] == report["update_sha256"]


def test_a_rank_that_dies_ends_all_groups(setting):
    folder, job = setting
    doomed = job(["a", "b"], **{**LONG, "steps": 100000})
    ranks = harness.start_ranks(doomed, 4, XFFL_COMM_TIMEOUT="60")
    wait_for_steps(doomed, 5, ranks)
    ranks[3].kill()
    output = harness.outputs(ranks, 120)
    assert all(rank.returncode != 0 for rank in ranks), output
    assert not (doomed.parent / "report.json").exists() and not (doomed.parent / "update").exists()


def test_an_error_of_one_rank_ends_and_reaches_the_others(setting):
    """During a step, while the other group waits for gradients."""
    folder, job = setting
    damaged = harness.write_tokens(folder / "damaged.tokens", harness.make_sequences(20))
    content = bytearray(damaged.read_bytes())
    for place in range(64, 64 + 2 * 20, 2):
        content[place:place + 2] = (500).to_bytes(2, "little")
    damaged.write_bytes(content)
    doomed = job([damaged, "b"], steps=100, groups=dict(count=2, exchange="gradients"))
    start = time.monotonic()
    outcome = harness.train(doomed, 2, check=False, XFFL_COMM_TIMEOUT="60")
    assert time.monotonic() - start < 40 and outcome.report is None
    assert outcome.codes[0] == 5 and "has id 500" in outcome.output[0], outcome.output
    assert "a rank died" in outcome.output[1] and "damaged.tokens" not in outcome.output[1]


@pytest.mark.parametrize("world_size,groups,changes,expected", [
    (3, dict(count=2), {}, "does not divide the 3 ranks"),
    (2, dict(count=2, exchange="gradients", interval=2), {}, "gradients are exchanged in every step"),
    (2, dict(count=2, exchange="gradients", outer=dict(kind="nesterov")), {}, "training.groups.outer"),
    (2, dict(count=2, interval=4), dict(validation_interval=6), "training.validation_interval is 6"),
    (2, dict(count=2), dict(train_paths=None), "holds no sequence for group 2"),
])
def test_invalid_settings_are_rejected_by_name(setting, tmp_path, world_size, groups, changes, expected):
    folder, job = setting
    train = ["a", "b"]
    if "train_paths" in changes:  # one sequence for two groups
        train, changes = [harness.write_tokens(folder / "one.tokens", harness.make_sequences(1))], {}
    outcome = harness.train(job(train, groups=groups, **changes), world_size, check=False, XFFL_COMM_TIMEOUT="20")
    assert outcome.report is None and any(expected in output for output in outcome.output), outcome.output
