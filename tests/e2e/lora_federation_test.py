"""A federation of LoRA with the built-in trainer: the model is pushed once, then only adapters travel and are averaged.

    lora_federation_test.py BIN_FOLDER SOURCE_FOLDER
"""
import json
import math
import pathlib
import shutil
import struct
import subprocess
import tempfile

from lab import BIN, encode, make_model, run

ROUNDS = 3
LORA = "{rank: 4, alpha: 8, target_modules: [q_proj, v_proj, down_proj]}"


DORA = LORA.replace("alpha: 8", "alpha: 8, weight_decomposed: true, modules_to_save: [lm_head]")


def make_project(folder, update="delta", rounds=ROUNDS, adapter=None, evaluate_last="false", lora=LORA):
    make_model(folder)
    for facility, seed in (("alba", 1), ("brno", 2)):
        encode(folder, facility, seed, 64)
    encode(folder, "val", 1, 16)
    (folder / "xffl.yaml").write_text(f"""
project: adapted
model: model
rounds: {rounds}
{f"adapter: {adapter}" if adapter else ""}
training: {{steps_per_round: 12, batch_size: 8, micro_batch_size: 8, learning_rate: 2e-2, lora: {lora}}}
aggregation: {{update: {update}, update_dtype: fp32, publish_dtype: fp32}}
policy: {{on_missing: fail, max_attempts: 1, poll_interval: 50ms, evaluate_last: {evaluate_last}}}
facilities:
  alba: {{workdir: work, environment: {{OMP_NUM_THREADS: "1"}}, data: {{train: alba.tokens, validation: {{val: val.tokens}}}}}}
  brno: {{workdir: work, environment: {{OMP_NUM_THREADS: "1"}}, data: {{train: brno.tokens}}}}
""")


def tensors(path):
    """Float32 tensors of a safetensors file, by name, as lists of numbers."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", entry
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        found[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return found


def events_of(folder):
    lines = run(BIN / "xffl", "inspect", folder / "runs/0001/journal.db", "--json").splitlines()
    return [json.loads(line) for line in lines]


def nll(model, tokens, *more):
    return json.loads(run(BIN / "xffl-train", "evaluate", "--model", model, "--tokens", tokens, "--json", *more))["nll"]


def check_traffic(folder):
    model_bytes = (folder / "model/model.safetensors").stat().st_size
    adapter_bytes = (folder / "runs/0001/CURRENT/adapter_model.safetensors").stat().st_size
    assert adapter_bytes < model_bytes / 2, (adapter_bytes, model_bytes)
    pushed = {}
    for event in events_of(folder):
        if event["kind"] == "pushed":
            pushed.setdefault(event["round"], []).append(event["payload"]["moved_bytes"])
    for number in range(1, ROUNDS + 1):
        for moved in pushed[number]:
            whole = model_bytes if number == 1 else 0
            assert whole + adapter_bytes <= moved <= whole + adapter_bytes + 8000, (number, moved, model_bytes, adapter_bytes)
        for facility in ("alba", "brno"):
            update = folder / f"runs/0001/r{number:04d}/{facility}/update"
            assert sorted(p.name for p in update.iterdir()) == ["adapter_config.json", "adapter_model.safetensors", "manifest.json"]


def check_mean(folder, update):
    """The published adapter is the mean of the facilities': each tensor by itself, weighted by tokens."""
    run_folder = folder / "runs/0001"
    for number in range(1, ROUNDS + 1):
        before = tensors(run_folder / f"r{number - 1:04d}/global/adapter_model.safetensors")
        after = tensors(run_folder / f"r{number:04d}/global/adapter_model.safetensors")
        parts = []
        for facility in ("alba", "brno"):
            answer = run_folder / f"r{number:04d}/{facility}"
            parts.append((json.loads((answer / "report.json").read_text())["tokens"],
                          tensors(answer / "update/adapter_model.safetensors")))
        total = sum(tokens for tokens, _ in parts)
        assert sorted(after) == sorted(before) and any("lora_A" in name for name in after)
        for name, values in after.items():
            mean = [sum(tokens * part[name][i] for tokens, part in parts) / total for i in range(len(values))]
            given = before[name] if update == "delta" else [0.0] * len(values)
            assert all(abs(v - g - m) <= 1e-6 for v, g, m in zip(values, given, mean)), name
            assert values != before[name], f"{name} has not changed"


def verified(folder, code=0):
    """The result of each check of a complete verification, and all failures."""
    checks = json.loads(run(BIN / "xffl", "verify", "-p", folder, "--read-data", "--replay", "--replay-blocks", 50,
                            "--json", code=code))["checks"]
    return ({one["check"]: one["result"] for one in checks},
            [f'{failure["subject"]}: {failure["problem"]}' for one in checks for failure in one["failures"]])


def check_verification(folder):
    """A run of adapters is verified whole; a flipped bit in an update, an adapter or the adapted model is named."""
    results, failures = verified(folder)
    assert failures == [], failures
    assert results["replay"] == "ok" and results["blocks"] == "ok", results
    for name in ("r0002/alba/update/adapter_model.safetensors", "r0001/global/adapter_model.safetensors",
                 "r0000/adapted/model.safetensors"):
        path = folder / "runs/0001" / name
        good = path.read_bytes()
        path.write_bytes(good[:-2] + bytes([good[-2] ^ 1]) + good[-1:])
        _, failures = verified(folder, code=5)
        path.write_bytes(good)
        there, file = name.rsplit("/", 1)
        assert any(text.startswith(there) and file in text for text in failures), (name, failures)
        if "update" in name:
            assert any(text.startswith("round 2: ") for text in failures), failures  # of the replay
    assert verified(folder)[1] == []


def check_first_adapter(folder):
    """Round 0 has the lengths of the rows of the model's weights, and the model's head."""
    base = tensors(folder / "model/model.safetensors")
    adapter = tensors(folder / "runs/0001/r0000/global/adapter_model.safetensors")
    magnitudes = {name: values for name, values in adapter.items() if name.endswith(".lora_magnitude_vector")}
    assert len(magnitudes) == (len(adapter) - 1) / 3, sorted(adapter)
    assert adapter["base_model.model.lm_head.weight"] == base["lm_head.weight"]
    for name, values in magnitudes.items():
        weight = base[name.removeprefix("base_model.model.").replace(".lora_magnitude_vector", ".weight")]
        columns = len(weight) // len(values)
        for row, value in enumerate(values):
            length = math.hypot(*weight[row * columns:(row + 1) * columns])
            assert abs(value - length) < 1e-6 * length, (name, row, value, length)


def federate(folder, update, lora=LORA):
    folder.mkdir()
    make_project(folder, update, lora=lora)
    run(BIN / "xffl", "run", "-p", folder)
    if lora == DORA:
        check_first_adapter(folder)
    check_traffic(folder)
    check_mean(folder, update)
    check_verification(folder)
    current, base, val = folder / "runs/0001/CURRENT", folder / "model", folder / "val.tokens"
    with_adapter, without = nll(base, val, "--adapter", current), nll(base, val)
    assert with_adapter < without - 0.1, (with_adapter, without)
    run(BIN / "xffl-train", "merge", "--model", base, "--adapter", current, "--out", folder / "merged")
    assert abs(nll(folder / "merged", val) - with_adapter) < 1e-5
    return current


def continue_from(folder, adapter):
    """A federation that begins with the adapter that another one ended with; its last adapter is measured, too."""
    folder.mkdir()
    make_project(folder, rounds=1, adapter=adapter, evaluate_last="true")
    config = (folder / "xffl.yaml").read_text()
    (folder / "xffl.yaml").write_text(config.replace("rank: 4, alpha: 8", "rank: 4, alpha: 16"))
    refused = subprocess.run([BIN / "xffl", "run", "-p", folder], capture_output=True, text=True)
    assert refused.returncode == 3, refused
    for word in ("'adapter' and 'training.lora' differ", str(adapter), "alpha 8.0", "alpha 16.0"):
        assert word in refused.stderr, refused.stderr
    (folder / "xffl.yaml").write_text(config.replace("rank: 4, alpha: 8", "rank: 0, alpha: 8"))
    assert "no adapter would be trained" in subprocess.run(
        [BIN / "xffl", "config", "validate", "-p", folder], capture_output=True, text=True).stderr
    shutil.rmtree(folder / "runs")
    (folder / "xffl.yaml").write_text(config)

    # The preview before the run names both folders.
    plan = json.loads(run(BIN / "xffl", "plan", "-p", folder, "--offline", "--json"))["facilities"][0]
    assert "/models/" in plan["model_folder"] and "/models/" in plan["adapter_folder"], plan
    assert plan["model_folder"] != plan["adapter_folder"], plan
    render = subprocess.run([BIN / "xffl", "render", "-p", folder, "alba"], capture_output=True, text=True)
    assert f"the model in {plan['model_folder']} and the adapter in {plan['adapter_folder']}" in render.stderr, render.stderr

    run(BIN / "xffl", "run", "-p", folder)
    run_folder = folder / "runs/0001"
    given = tensors(adapter / "adapter_model.safetensors")
    assert tensors(run_folder / "r0000/global/adapter_model.safetensors") == given
    status = json.loads(run(BIN / "xffl", "status", "-p", folder, "--json"))
    losses = {entry["round"]: entry["loss"] for entry in status["validation"]}
    base, val = folder / "model", folder / "val.tokens"
    for number, current in ((0, adapter), (1, run_folder / "CURRENT")):
        assert abs(losses[number] - nll(base, val, "--adapter", current)) < 1e-6, (number, losses)
    assert losses[1] < losses[0], losses


def freeze_a(folder):
    """Facilities that train B alone, one of them in a pipeline, average the adapters' products: A keeps its bits."""
    folder.mkdir()
    make_project(folder, rounds=2)
    path = folder / "xffl.yaml"
    text = path.read_text()
    assert "lora: {" in text and "  brno: {" in text
    path.write_text(text.replace("lora: {", "freeze: '*.lora_A.weight', lora: {")
                    .replace("  brno: {", "  brno: {world_size: 2, training: {pipeline: {stages: 2}}, "))
    run(BIN / "xffl", "run", "-p", folder)
    rounds = [tensors(folder / f"runs/0001/r{number:04d}/global/adapter_model.safetensors") for number in range(3)]
    for name, values in rounds[0].items():
        assert (values == rounds[2][name]) == ("lora_A" in name) == (values == rounds[1][name]), name
    report = json.loads((folder / "runs/0001/r0002/brno/report.json").read_text())
    assert report["world_size"] == 2, report
    current, val = folder / "runs/0001/CURRENT", folder / "val.tokens"
    with_adapter, without = nll(folder / "model", val, "--adapter", current), nll(folder / "model", val)
    assert with_adapter < without - 0.01, (with_adapter, without)
    assert verified(folder)[1] == []


def main():
    with tempfile.TemporaryDirectory() as name:
        adapter = federate(pathlib.Path(name) / "deltas", "delta")
        continue_from(pathlib.Path(name) / "continued", adapter)
        federate(pathlib.Path(name) / "weights", "weights", DORA)
        freeze_a(pathlib.Path(name) / "frozen")
        # A killed and continued run has the same adapter.
        folder = pathlib.Path(name) / "killed"
        folder.mkdir()
        make_project(folder)
        first = subprocess.Popen([BIN / "xffl", "run", "-p", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        journal = folder / "runs/0001/journal.jsonl"
        while first.poll() is None and not (journal.exists() and "update_accepted" in journal.read_text()):
            pass
        first.kill()
        first.wait()
        run(BIN / "xffl", "run", "-p", folder)
        adapters = [(pathlib.Path(name) / run_name / "runs/0001/CURRENT/adapter_model.safetensors").read_bytes()
                    for run_name in ("deltas", "killed")]
        assert adapters[0] == adapters[1], "another adapter than without the kill"
    print("ok")


main()
