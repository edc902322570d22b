"""job.json of the benchmarks: all keys of `training` at their defaults, with a benchmark's changes."""

SEED = 1


def training_settings(**changes):
    settings = dict(steps=1, first_step=0, batch_size=1, micro_batch_size=1, learning_rate=1e-3,
                    schedule=dict(kind="constant", warmup_steps=0, total_steps=0, min_ratio=0.0),
                    weight_decay=0.1, beta1=0.9, beta2=0.95, epsilon=1e-8, max_grad_norm=1.0, seed=SEED,
                    precision="fp32", masters="fp32", moment_dtype="fp32", gradient_dtype="fp32",
                    validation_samples=0, train_samples=0, sharding="none", shard_group_size=0, recompute="none", offload="none",
                    checkpoint_interval=0, keep_checkpoints=1, max_tokens=0, validation_interval=0, early_stop_patience=0,
                    early_stop_keep="best", proximal=0.0, document_mask=False, deterministic=False, keep_optimizer=False, freeze=[],
                    lora=dict(rank=0, alpha=16.0, dropout=0.0, target_modules=[]),
                    groups=dict(count=1, interval=1, exchange="weights", weighting="equal",
                                outer=dict(kind="average", learning_rate=1.0, momentum=0.9, beta1=0.9, beta2=0.99, epsilon=1e-8)),
                    pipeline=dict(stages=1, schedule="1f1b"))
    settings.update(changes)
    return settings


def job(model, model_sha256, tokens, training, version=4, update_dtype="fp32"):
    """Writes results to the folder of job.json."""
    return dict(version=version, key=dict(project="p", run="0001", round=1, facility="alba", attempt=1, nonce="0" * 32),
                base_model_path=str(model), base_model_sha256=model_sha256, base_model_packed=None, train_paths=[str(tokens)],
                validation=[], adapter_path="", adapter_sha256="", optimizer_path="", update_path="update", report_path="report.json",
                metrics_path="metrics.jsonl", state_path="state", on_stop="update", update_kind="weights", update_dtype=update_dtype,
                training=training)
