"""Hugging Face's LlamaForCausalLM with torch's AdamW at several settings, in one process: prints a JSON line after each setting.

    python hf_settings.py '{"model": ..., "ids": ..., "length": 2048, "device": "cuda", "threads": 16, "steps": 4, "warm_up": 2,
                            "learning_rate": 1e-5, "deadline_s": 120, "backend": "inductor",
                            "settings": [{"mode": "pure bf16", "batch_size": 4, "compile": "none"}]}'

mode: "pure bf16" (weights, gradients and moments in bfloat16), "bf16 autocast" (over float32 weights), "fp32". compile: none; layers
(each block by itself); model (the whole). Every setting begins from the weights in the folder and takes the batches that xffl-train
takes. A setting that runs out of memory has a line that says so; one for which the time before `deadline_s` seconds is short is left
out with a line. Driven by gpu_check.
"""
import gc
import json
import pathlib
import resource
import sys
import time

PROJECT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(PROJECT / "tests" / "tokens")]

from trainer_job import SEED  # noqa: E402

BEGAN = time.monotonic()
COMPILE_SECONDS = dict(none=0, layers=45, model=90)  # approximate, on a GPU


def tell(**fields):
    print(json.dumps(fields), flush=True)


def batches(data, batch_size, steps):
    from permutation_reference import permutation

    order, epoch = [], 0
    while len(order) < steps * batch_size:
        order += permutation(len(data), SEED, epoch)
        epoch += 1
    for step in range(steps):
        yield data[order[step * batch_size:(step + 1) * batch_size]]


class Side:
    """The model in one mode; each setting starts with the weights of the folder."""

    def __init__(self, options, mode):
        import torch
        from transformers import LlamaForCausalLM

        self.options, self.mode, self.torch = options, mode, torch
        self.device = torch.device(options["device"])
        dtype = torch.bfloat16 if mode == "pure bf16" else torch.float32
        self.model = LlamaForCausalLM.from_pretrained(options["model"], dtype=dtype, attn_implementation="sdpa").to(self.device)
        self.model.config.use_cache = False
        self.model.train()
        self.is_new = True

    def reset(self):
        """Reloads the weights and drops the state of earlier settings."""
        torch = self.torch
        if self.is_new:
            self.is_new = False
        else:
            from safetensors import safe_open

            parameters = dict(self.model.named_parameters())
            with torch.no_grad():
                for path in sorted(pathlib.Path(self.options["model"]).glob("*.safetensors")):
                    with safe_open(path, "pt", device=str(self.device)) as shard:
                        for name in shard.keys():
                            parameters[name].copy_(shard.get_tensor(name))
        self.model.zero_grad(set_to_none=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def compile(self, how):
        if how == "none":
            return
        self.torch._dynamo.reset()
        for module in self.model.model.layers if how == "layers" else [self.model]:
            module.compile(dynamic=False, backend=self.options["backend"])

    def optimizer(self):
        matrices = [p for p in self.model.parameters() if p.dim() == 2]
        vectors = [p for p in self.model.parameters() if p.dim() != 2]
        groups = [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)]
        return self.torch.optim.AdamW(groups, lr=self.options["learning_rate"], betas=(0.9, 0.95), eps=1e-8, fused=True)

    def steps(self, data, batch_size):
        torch, model, device = self.torch, self.model, self.device
        optimizer, seconds, losses = self.optimizer(), [], []
        autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.mode == "bf16 autocast")
        for ids in batches(data, batch_size, self.options["warm_up"] + self.options["steps"]):
            start = time.perf_counter()
            tokens = torch.from_numpy(ids).to(device).long()
            optimizer.zero_grad(set_to_none=True)
            with autocast:
                # The model shifts labels itself and needs one more token than targets: the last token is added, as in xffl.
                loss = model(input_ids=tokens[:, :-1], labels=tokens[:, 1:], shift_labels=tokens[:, 1:].contiguous()).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return seconds, losses

    def peak_bytes(self):
        if self.device.type == "cuda":
            return self.torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(side, data, setting):
    side.reset()
    side.compile(setting["compile"])
    try:
        seconds, losses = side.steps(data, setting["batch_size"])
    except side.torch.OutOfMemoryError:
        return tell(**setting, status="out_of_memory")
    tell(**setting, status="measured", seconds=seconds, losses=losses, peak_memory_bytes=side.peak_bytes())


def main(options):
    import numpy
    import torch
    import transformers

    torch.set_num_threads(options["threads"])
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tell(torch=torch.__version__, transformers=transformers.__version__)
    data = numpy.fromfile(options["ids"], dtype=numpy.int32).reshape(-1, options["length"] + 1)
    side, took = None, 0.0
    for setting in options["settings"]:
        left = options["deadline_s"] - (time.monotonic() - BEGAN)
        compiling = COMPILE_SECONDS[setting["compile"]] if options["device"] == "cuda" else 0
        if took and left < max(1.5 * took, compiling):
            tell(**setting, status="out_of_time", left_s=left)
            continue
        if side is None or side.mode != setting["mode"]:
            side = None
            gc.collect()
            side = Side(options, setting["mode"])
        began = time.monotonic()
        measure(side, data, setting)
        took = time.monotonic() - began


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
