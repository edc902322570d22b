#!/usr/bin/env python3
"""A facility's trainer with the Trainer of Hugging Face transformers, with one rank or several; it continues checkpoints."""
import torch
import xffl_hf
import xffl_job
from transformers import AutoModelForCausalLM, Trainer


def train(job):
    model = AutoModelForCausalLM.from_pretrained(job.path("base_model_path"), dtype=torch.float32)
    trainer = Trainer(model, xffl_hf.arguments(job), train_dataset=xffl_hf.Records(job), data_collator=xffl_hf.collate,
                      callbacks=[xffl_hf.JobCallback(job)])
    xffl_hf.run(trainer, job)


if __name__ == "__main__":
    xffl_job.main_of(train, honoured=["on_stop"])
