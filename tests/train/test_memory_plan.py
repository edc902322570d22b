"""The memory plan that a job logs before it allocates."""

import threading

import pytest

import harness


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    base_hash = harness.make_model(folder / "base")
    tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(8))

    def job(name, **changes):
        return harness.make_job(folder / name, folder / "base", base_hash, tokens, **{**dict(steps=1), **changes})

    return job


@pytest.mark.parametrize("changes", [dict(), dict(sharding="full"), dict(pipeline=dict(stages=2, schedule="1f1b"))],
                         ids=["none", "full", "pipeline"])
def test_a_small_job_fits(setting, changes):
    """On two ranks; each stage of a pipeline logs its own plan."""
    outcome = harness.train(setting("small" + "".join(changes), **changes), 2)
    plans = [line for output in outcome.output for line in output.splitlines() if "memory plan of a rank" in line]
    assert len(plans) == (2 if "pipeline" in changes else 1) and all("memory plan of a rank: fits" in line for line in plans)
    first = outcome.output[0]
    assert first.index("memory plan") < first.index("job loaded"), "before there is anything to run out of memory"


def test_a_too_large_job_is_reported_before_it_loads(setting):
    """A micro-batch of a million sequences: terabytes of activations."""
    rank = harness.start_ranks(setting("large", batch_size=1 << 20, micro_batch_size=1 << 20))[0]
    killer = threading.Timer(120, rank.kill)
    killer.start()
    try:
        for line in rank.stdout:
            assert "job loaded" not in line and "fits" not in line
            if "memory plan of a rank: may not fit" in line:
                return
    finally:
        killer.cancel()
        rank.kill()
        rank.communicate()
    raise AssertionError("no memory plan was logged")
