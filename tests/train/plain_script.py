"""A training script that knows nothing of xffl: it fine-tunes a model on JSON lines, on one rank or several.

--fail: ends with this exit code; --save: hf (a folder of transformers) or state (a state dict of torch).
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time

import torch
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--output", required=True, type=pathlib.Path)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--save", default="hf")
parser.add_argument("--fail", type=int, default=0)
parser.add_argument("--pause", type=float, default=0.0)
options = parser.parse_args()
warned = []
signal.signal(signal.SIGUSR1, lambda *_: warned.append(True))
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if ranks > 1:
    torch.distributed.init_process_group("gloo")
model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.0)
records, steps = [json.loads(line) for line in open(options.data)], 0
for begin in range(0, len(records), options.batch):
    batch = records[begin : begin + options.batch]
    targets = sum(label >= 0 for record in batch for label in record["labels"])
    for record in batch[rank::ranks]:
        logits = model(input_ids=torch.tensor([record["input_ids"]])).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(record["labels"][1:]), ignore_index=-100, reduction="sum")
        (loss / targets).backward()
    stop = torch.tensor(len(warned))
    if ranks > 1:
        for p in model.parameters():
            torch.distributed.all_reduce(p.grad)
        torch.distributed.all_reduce(stop)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
    print("step", steps, flush=True)
    time.sleep(options.pause)
    if stop:
        break
if options.fail:
    sys.exit(options.fail)
if rank == 0:
    if options.save == "hf":
        model.save_pretrained(options.output)
    elif options.save == "state":
        torch.save(model.state_dict(), options.output / "weights.pt")
    (options.output / "trainer_state.json").write_text(json.dumps({"global_step": steps}))
