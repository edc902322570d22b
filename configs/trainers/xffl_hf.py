"""Jobs of xffl for the Trainer of Hugging Face transformers 5, on xffl_job.py (docs/user/own_trainer.md).

    trainer = Trainer(model, xffl_hf.arguments(job), train_dataset=xffl_hf.Records(job),
                      data_collator=xffl_hf.collate, callbacks=[xffl_hf.JobCallback(job)])
    xffl_hf.run(trainer, job)   # trains, or continues from a checkpoint of the job; writes update and report
"""
import hashlib
import json
import os
import time

import torch
import xffl_job
from transformers import TrainerCallback, TrainingArguments
from transformers import __version__ as transformers_version

MARK = "xffl_checkpoint.json"  # in a checkpoint's folder: it is complete, and of this job
# accelerate names the device of one of several ranks on CPUs cpu:<local rank>. The Trainer reads a checkpoint's optimizer to
# that device, and torch.load accepts only the name cpu.
torch.serialization.register_package(30, lambda _: None, lambda storage, device: storage if device.startswith("cpu:") else None)


class Records(torch.utils.data.Dataset):
    """The sequences of all steps of a job, in the order of xffl-train."""

    def __init__(self, job):
        self.sequences, self.size, settings = job.train_data(), job.training["batch_size"], job.training
        self.begin, self.count = settings["first_step"] * self.size, settings["steps"] * self.size
        self.sampler = xffl_job.Sampler(len(self.sequences), 1, settings["seed"])

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.sequences[self.sampler.step_indices(self.begin + i)[0]]

    def num_targets(self, steps):
        """The tokens that the loss counts in these steps of the job, over all ranks."""
        return sum(xffl_job.num_targets([self[i]]) for step in steps for i in range(step * self.size, (step + 1) * self.size))


def collate(sequences):
    ids, labels = xffl_job.collate(sequences)
    return {"input_ids": ids, "labels": labels}


def state_folder(job):
    """The folder of the job's checkpoints: other attempts of this facility and round find them, other settings do not."""
    same = {name: job.key[name] for name in ("project", "run", "round", "facility")}
    same |= {"model": job.document["base_model_sha256"], "data": job.document["train_paths"], "training": job.training}
    return job.path("state_path") / ("trainer-" + hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16])


def arguments(job, **changes):
    """TrainingArguments with the job's settings; `changes`, such as bf16=True, are yours."""
    settings, cpu = job.training, not torch.cuda.is_available()
    each, rest = divmod(settings["batch_size"], job.world_size)
    if rest:
        raise xffl_job.JobError(f"training.batch_size: {settings['batch_size']} sequences cannot be shared equally among {job.world_size} ranks")
    if job.world_size > 1:  # a Slurm step has other names
        os.environ.update(RANK=str(job.rank), WORLD_SIZE=str(job.world_size), LOCAL_RANK=str(job.local_rank))
    micro = next(n for n in range(min(each, settings["micro_batch_size"]), 0, -1) if each % n == 0)
    interval = settings.get("checkpoint_interval", 0)
    values = dict(
        output_dir=str(state_folder(job)), max_steps=max(settings["steps"], 1), per_device_train_batch_size=micro,
        gradient_accumulation_steps=each // micro, learning_rate=settings["learning_rate"], lr_scheduler_type="constant",
        weight_decay=settings["weight_decay"], adam_beta1=settings["beta1"], adam_beta2=settings["beta2"],
        adam_epsilon=settings["epsilon"], max_grad_norm=settings["max_grad_norm"], seed=settings["seed"] % (1 << 32),
        train_sampling_strategy="sequential", remove_unused_columns=False, logging_steps=1, report_to="none", disable_tqdm=True,
        save_strategy="steps" if interval else "no", save_steps=interval or 500, save_total_limit=settings.get("keep_checkpoints"),
        use_cpu=cpu, ddp_find_unused_parameters=False, ddp_backend="gloo" if cpu and job.world_size > 1 else None,
    )
    return TrainingArguments(**{**values, **changes})


class JobCallback(TrainerCallback):
    """Sets the federation's learning rate, writes metrics.jsonl, and ends the training at the warning signal."""

    def __init__(self, job):
        self.job, self.began = job, time.monotonic()

    def on_step_begin(self, args, state, control, optimizer=None, **_):
        self.began = time.monotonic()
        self.rate = self.job.learning_rate(self.job.training["first_step"] + state.global_step)
        for group in optimizer.param_groups:
            group["lr"] = self.rate

    def on_step_end(self, args, state, control, **_):
        if state.global_step < self.job.training["steps"] and self.job.should_stop():
            control.should_training_stop = True
            control.should_save = self.job.document["on_stop"] == "checkpoint"

    def on_log(self, args, state, control, logs=None, train_dataloader=None, **_):
        if "loss" not in logs:  # the summary at the end
            return
        spent = state.log_history[-1]["seconds"] = time.monotonic() - self.began  # kept in checkpoints
        if self.job.rank == 0:
            tokens = train_dataloader.dataset.num_targets([state.global_step - 1])
            self.job.metric(self.job.training["first_step"] + state.global_step - 1, loss=logs["loss"], lr=self.rate,
                            grad_norm=float(logs.get("grad_norm", 0.0)), tokens=tokens, seconds=spent, tokens_per_second=tokens / spent)

    def on_save(self, args, state, control, **_):
        self.job.sum(0)  # until the other ranks have written their files
        if self.job.rank == 0:
            folder = state_folder(self.job) / f"checkpoint-{state.global_step}"
            for path in folder.iterdir():
                xffl_job.sync(path)
            xffl_job.write_whole(folder / MARK, json.dumps({"step": state.global_step}))


def last_checkpoint(job):
    """The newest complete checkpoint of the job, as rank 0 sees it; None: there is none."""
    found = [int(mark.parent.name.rpartition("-")[2]) for mark in state_folder(job).glob(f"checkpoint-*/{MARK}")]
    steps = int(job.sum(max(found, default=0) if job.rank == 0 else 0))
    return str(state_folder(job) / f"checkpoint-{steps}") if steps else None


def leave_group(trainer):
    """Ends the process group and the threads of gloo, which must not outlive the interpreter.

    The wrapper of DistributedDataParallel goes first. As the group's last owner it would end these threads itself, later, while
    it holds the interpreter's lock; a thread that still has to free a tensor waits for the lock, and the rank hangs.
    """
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()  # collects garbage, too
    torch.distributed.destroy_process_group()


def run(trainer, job):
    """Trains and writes update and report. A signal ends it with the update of the completed steps, or with a checkpoint
    (policy.on_walltime), from which the next attempt continues."""
    model, settings = trainer.model, job.training
    before = job.evaluate(model)
    name = f"Trainer (transformers {transformers_version}, torch {torch.__version__})"
    if settings["steps"] == 0:
        return job.finish({}, [], 0, 0, before, None, name)
    trainer.train(resume_from_checkpoint=last_checkpoint(job))
    model, done = trainer.model, trainer.state.global_step
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    if len(steps) != done:
        raise xffl_job.JobError(f"the Trainer logged the losses of {len(steps)} of {done} steps: leave logging_steps=1")
    after = job.evaluate(model.eval())
    if job.world_size > 1:
        leave_group(trainer)
    job.finish(model.state_dict(), [entry["loss"] for entry in steps], done * settings["batch_size"],
               trainer.train_dataset.num_targets(range(done)) if job.rank == 0 else 0, before,
               after, name, sum(entry["seconds"] for entry in steps),
               checkpoint=done < settings["steps"] and job.document["on_stop"] == "checkpoint")
