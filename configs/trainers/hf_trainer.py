#!/usr/bin/env python3
"""A facility's trainer on Hugging Face transformers and xffl_job.py, with one rank or several (torch.distributed, gloo)."""
import math
import time

import torch
import xffl_job
from transformers import AutoModelForCausalLM


def train(job):
    torch.manual_seed(job.training["seed"])
    if job.world_size > 1:
        torch.distributed.init_process_group("gloo", rank=job.rank, world_size=job.world_size)
    model = AutoModelForCausalLM.from_pretrained(job.path("base_model_path"), dtype=torch.float32)
    settings, parameters = job.training, list(model.parameters())
    groups = [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings["weight_decay"]},
              {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"])
    before, began = job.evaluate(model), time.monotonic()
    losses, samples, tokens, size = [], 0, 0, settings["micro_batch_size"]
    for step, sequences in job.batches():
        if job.should_stop():
            break
        step_began, total = time.monotonic(), 0.0
        count = int(job.sum(xffl_job.num_targets(sequences)))
        for first in range(0, len(sequences), size):
            loss = xffl_job.summed_loss(model, sequences[first : first + size])
            (loss / count).backward()
            total += loss.item()
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if job.world_size > 1:  # each rank divided by the tokens of all ranks: the sum is the mean's gradient
                torch.distributed.all_reduce(p.grad)
        for group in optimizer.param_groups:
            group["lr"] = job.learning_rate(step)
        norm = torch.nn.utils.clip_grad_norm_(parameters, settings["max_grad_norm"] or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(job.sum(total) / count)
        samples, tokens, spent = samples + settings["batch_size"], tokens + count, time.monotonic() - step_began
        job.metric(step, loss=losses[-1], lr=job.learning_rate(step), grad_norm=float(norm), tokens=count,
                   seconds=spent, tokens_per_second=count / spent)
    seconds = time.monotonic() - began
    after = job.evaluate(model) if losses else {}
    if job.world_size > 1:  # gloo's threads must end before the interpreter does
        torch.distributed.destroy_process_group()
    job.finish(model.state_dict(), losses, samples, tokens, before, after, f"hf_trainer.py (torch {torch.__version__})", seconds)


if __name__ == "__main__":
    xffl_job.main_of(train)
