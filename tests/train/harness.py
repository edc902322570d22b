"""Shared by the Python tests of xffl-train: models made by Hugging Face, token shards, jobs, and ranks.

xffl-train runs on the device that device.py names; Hugging Face's models, the reference, run on the CPU.
"""

import json
import os
import random
import signal
import socket
import subprocess
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from device import BIN, DEVICE

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
# Relative differences to Hugging Face's float32 on the CPU. A GPU adds in another order, in attention, norms and the head's
# softmax, and multiplies by 3 x TF32 in attention: ten times a CPU's differences, and more after steps of AdamW.
TOLERANCES = {
    # nll: mean of a data set; sequence: mean of a sequence; loss: of a training's steps in float32; lora_loss: the same with
    # adapters, absolute; lora_norm: their gradient's norm; adapter: L2 norm of a trained adapter's difference;
    # bf16: loss of a model computed in bfloat16; pure_bf16: of a training in pure bfloat16, against Hugging Face's.
    "cpu": dict(nll=2e-6, sequence=1e-5, loss=1e-5, lora_loss=1e-4, lora_norm=1e-3, adapter=1e-3, bf16=1e-2, pure_bf16=0.02),
    "cuda": dict(nll=1e-5, sequence=5e-5, loss=1e-4, lora_loss=1e-4, lora_norm=1e-3, adapter=1e-3, bf16=1e-2, pure_bf16=0.02),
}
TOLERANCE = TOLERANCES[DEVICE]
# Job options for tests that compare bits: a GPU's default operators add in another order in each run.
SAME_BITS = dict(deterministic=DEVICE == "cuda")
PATIENCE_S = float(os.environ.get("XFFL_TEST_PATIENCE") or 300)  # for a job; an emulated processor needs more
NONCE = "0123456789abcdef0123456789abcdef"

SMALL = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, max_position_embeddings=256, rms_norm_eps=1e-5, attention_dropout=0.0,
             bos_token_id=1, eos_token_id=2)


def rope(**parameters):
    """RoPE settings in the dialect of the installed transformers."""
    theta = parameters.pop("rope_theta", 10000.0)
    if int(transformers.__version__.split(".")[0]) >= 5:
        return {"rope_parameters": {"rope_theta": theta, **parameters}}
    return {"rope_theta": theta, "rope_scaling": parameters}


def variants():
    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=64)
    return {
        "plain": {},
        "grouped_queries_odd_head_dim": dict(num_key_value_heads=2, head_dim=20),
        "one_key_value_head": dict(num_key_value_heads=1),
        "llama3_rope": rope(**llama3),
        "linear_rope": rope(rope_type="linear", factor=4.0),
        "tied": dict(tie_word_embeddings=True),
        "biased": dict(attention_bias=True, mlp_bias=True),
        "mistral": dict(model_type="mistral", num_key_value_heads=2, sliding_window=None),
        # The window is shorter than most sequences of the tests.
        "mistral_window": dict(model_type="mistral", num_key_value_heads=2, head_dim=20, sliding_window=11),
        "qwen2": dict(model_type="qwen2", num_key_value_heads=2),
        "qwen2_tied": dict(model_type="qwen2", num_key_value_heads=1, tie_word_embeddings=True,
                           **rope(rope_type="linear", factor=4.0)),
        "qwen3": dict(model_type="qwen3", num_key_value_heads=2, head_dim=20),
        "qwen3_tied": dict(model_type="qwen3", num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, attention_bias=True),
        "yarn_rope": rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
        "qwen3_yarn": dict(model_type="qwen3", head_dim=16, **rope(rope_type="yarn", factor=2.0, beta_fast=8.0, beta_slow=2.0,
                           mscale=1.0, mscale_all_dim=0.4, original_max_position_embeddings=128, truncate=False)),
        "dynamic_rope": rope(rope_type="dynamic", factor=2.0),
        "everything": dict(num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, attention_bias=True,
                           mlp_bias=True, **rope(**llama3)),
    }


def on_gpu(values, *chosen):
    """Parametrizes a test; a GPU runs the chosen values only."""
    import pytest  # not where only benchmarks run

    return [pytest.param(value, marks=[pytest.mark.gpu] if value in chosen else []) for value in values]


def make_model(folder, seed=0, dtype=torch.float32, max_shard_size="1GB", **changes):
    """Saves a random model, a LLaMA by default, with nontrivial biases and norms, and its manifest; returns the root hash."""
    torch.manual_seed(seed)
    settings = {"model_type": "llama", **SMALL, **changes}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.1 if parameter.dim() == 2 else 0.2
            parameter.normal_(1.0 if "norm" in name else 0.0, spread)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return write_manifest(folder)


def write_manifest(folder):
    return run([BIN / "xffl_test_tool", "manifest", folder]).stdout.strip()


def make_sequences(count, vocab_size=97, lengths=(2, 40), seed=0):
    generator = random.Random(seed)
    return [[generator.randrange(vocab_size) for _ in range(generator.randint(*lengths))] for _ in range(count)]


def write_tokens(path, sequences, vocab_size=97, packed=0):
    """Writes one sequence per document, or documents packed into sequences of `packed` tokens."""
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids in sequences)
    length = packed or max(map(len, sequences))
    run([BIN / "xffl_test_tool", "packed" if packed else "tokens", vocab_size, length, path], input=lines)
    return path


def run(command, check=True, timeout=300, **options):
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout, **options)
    assert not check or result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def xffl_train(command, *arguments):
    """The command line of a subcommand on the device under test."""
    return [BIN / "xffl-train", command, "--device", DEVICE, *arguments]


def evaluate(model, tokens, *arguments):
    return json.loads(run(xffl_train("evaluate", "--model", model, "--tokens", tokens, "--json", *arguments)).stdout)


def load(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype)


def hf_sum(model, ids):
    """The NLL sum of a sequence's tokens without the first, and their number, from Hugging Face's model."""
    tokens = torch.tensor([ids])
    loss = model(tokens, labels=tokens).loss
    return loss * (len(ids) - 1), len(ids) - 1


def hf_accuracy(model, sequences):
    """The share of the predicted tokens that have the largest logit."""
    hits = count = 0
    with torch.no_grad():
        for ids in sequences:
            best = model(torch.tensor([ids])).logits[0, :-1].argmax(-1)
            hits, count = hits + (best == torch.tensor(ids[1:])).sum().item(), count + len(ids) - 1
    return hits / count


def hf_step(model, optimizer, parameters, sequences, max_norm, before_clipping=lambda: None):
    """One step of Hugging Face's model on all sequences at once: the mean loss before it and the gradient's norm."""
    optimizer.zero_grad()
    sums = [hf_sum(model, ids) for ids in sequences if len(ids) > 1]
    loss = sum(nll for nll, _ in sums) / sum(count for _, count in sums)
    loss.backward()
    before_clipping()
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    return loss.item(), norm.item()


def hf_evaluate(model, sequences):
    with torch.no_grad():
        means = [None if len(ids) == 1 else (hf_sum(model, ids)[0] / (len(ids) - 1)).item() for ids in sequences]
    counts = [len(ids) - 1 for ids in sequences]
    total = sum(mean * count for mean, count in zip(means, counts) if count)
    return sum(counts), total / sum(counts), means


def make_job(folder, base, base_hash, train, validation=(), **changes):
    """Writes job.json; keys of `training` may be given beside those of the job."""
    training = dict(steps=5, first_step=0, batch_size=8, micro_batch_size=4, learning_rate=1e-3,
                    schedule=dict(kind="constant", warmup_steps=0, total_steps=100, min_ratio=0.0), weight_decay=0.0,
                    beta1=0.9, beta2=0.95, epsilon=1e-8, max_grad_norm=1.0, seed=1, precision="fp32",
                    masters="fp32", moment_dtype="fp32", gradient_dtype="fp32",
                    sharding="none", shard_group_size=0, recompute="none", offload="none",
                    checkpoint_interval=0, keep_checkpoints=2,
                    validation_samples=0, train_samples=0, max_tokens=0, validation_interval=0, early_stop_patience=0, early_stop_keep="best",
                    proximal=0.0, document_mask=False, deterministic=False, keep_optimizer=False, freeze=[],
                    lora=dict(rank=0, alpha=16.0, dropout=0.0, target_modules=["q_proj", "v_proj"]),
                    groups=dict(count=1, interval=1, exchange="weights", weighting="equal",
                                outer=dict(kind="average", learning_rate=1.0, momentum=0.9, beta1=0.9, beta2=0.99,
                                           epsilon=1e-8)),
                    pipeline=dict(stages=1, schedule="1f1b"))
    job = dict(version=4, key=dict(project="p", run="0001", round=1, facility="alba", attempt=1, nonce=NONCE),
               base_model_path=str(base), base_model_sha256=base_hash, base_model_packed=None, train_paths=[str(train)],
               validation=[dict(name=name, path=str(path)) for name, path in validation],
               adapter_path="", adapter_sha256="", optimizer_path="", update_path="update",
               report_path="report.json", metrics_path="metrics.jsonl", state_path="state",
               on_stop="update", update_kind="weights", update_dtype="fp32")
    for key, value in changes.items():
        (training if key in training else job)[key] = value
    job["training"] = training
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    return folder / "job.json"


class Outcome:
    def __init__(self, folder, codes, output):
        self.folder, self.codes, self.output = folder, codes, output
        path = folder / "metrics.jsonl"
        self.metrics = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path = folder / "report.json"
        self.report = json.loads(path.read_text()) if path.exists() else None

    @property
    def losses(self):
        return [metric["loss"] for metric in self.metrics]


reserved_ports = []  # sockets, until this program ends


def free_port():
    """A port for the ranks of one start. The socket that stays bound keeps the kernel from giving the port to another program
    while the ranks load their libraries for seconds; a rank that sets SO_REUSEADDR, as torch's store does, may still listen."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    reserved_ports.append(holder)
    return holder.getsockname()[1]


def start_ranks(job, world_size=1, program=(BIN / "xffl-train", "--device", DEVICE), **environment):
    port = free_port()
    ranks = []
    for rank in range(world_size):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **environment}
        if world_size > 1:
            env |= dict(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([*map(str, program), "--job", str(job)], env=env,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return ranks


def last_output(rank):
    """The output of an aborted rank; a stopped one is killed."""
    try:
        return rank.communicate(timeout=20)[0]
    except subprocess.TimeoutExpired:
        rank.kill()
        return rank.communicate()[0]


def outputs(ranks, seconds):
    """The outputs of ranks that end within so many seconds. Otherwise all ranks are aborted, and the error shows each one's output,
    with the stack of a program in Python: the rank that waits is seldom the one that failed."""
    deadline, found = time.monotonic() + seconds, []
    try:
        for rank in ranks:
            found.append(rank.communicate(timeout=max(0.1, deadline - time.monotonic()))[0])
        return found
    except subprocess.TimeoutExpired:
        codes = [rank.poll() for rank in ranks]
        for rank in ranks:
            rank.send_signal(signal.SIGABRT)
        rest = [last_output(rank) for rank in ranks[len(found):]]
        shown = "\n".join(f"--- rank {i}, exit code {code}:\n{text}" for i, (code, text) in enumerate(zip(codes, [*found, *rest])))
        raise AssertionError(f"the ranks did not end within {seconds} s\n{shown}") from None


def train(job, world_size=1, check=True, **environment):
    ranks = start_ranks(job, world_size, **environment)
    output = outputs(ranks, PATIENCE_S)
    codes = [rank.returncode for rank in ranks]
    assert not check or codes == [0] * world_size, f"{codes}\n" + "\n".join(output)
    return Outcome(job.parent, codes, output)


def path_faults(**where):
    """The environment of a rank whose system calls fail or are interrupted at some paths (tests/support/path_faults.cc)."""
    import pytest  # not where only benchmarks run

    library = BIN / "xffl-path-faults.so"
    if not library.exists():
        pytest.skip(f"{library} is not built here")
    if b"__asan_init" in (BIN / "xffl-train").read_bytes() or b"__tsan_init" in (BIN / "xffl-train").read_bytes():
        pytest.skip("nothing can be preloaded before a sanitizer's runtime")
    return {"LD_PRELOAD": str(library), **where}


def kill_at(checkpoint, job, world_size=1):
    """Runs a job until one rank begins to write the checkpoint of this step; then all ranks die by SIGKILL."""
    ranks = start_ranks(job, world_size, **path_faults(XFFL_KILL_FOR=f"step-{checkpoint:08}"))
    deadline = time.monotonic() + 240
    while not (ended := [rank for rank in ranks if rank.poll() is not None]) and time.monotonic() < deadline:
        time.sleep(0.01)
    for rank in ranks:
        rank.kill()
    output = [rank.communicate()[0] for rank in ranks]
    assert any(rank.returncode == -signal.SIGKILL for rank in ended), output


def expect_measured_before(report, job):
    """The report of a stopped job has the losses of its input model; nll_after 0: not measured."""
    spec = json.loads(job.read_text())
    assert [found["name"] for found in report["validation"]] == [entry["name"] for entry in spec["validation"]] != []
    for found, entry in zip(report["validation"], spec["validation"]):
        expected = evaluate(spec["base_model_path"], entry["path"])
        assert relative(found["nll_before"], expected["nll"]) < 1e-4
        assert found["tokens"] == expected["tokens"] and found["nll_after"] == 0 and "accuracy_after" not in found


def relative(found, expected):
    return abs(found - expected) / abs(expected)
