"""Pipelines of several stages against one rank: time per step, waiting time and peak memory of each stage.

    XFFL_BIN=build/dev/bin .deps/venv/bin/python tests/bench/pipeline_bench.py [--stages 1 2] [--micro-batches 2 4 8] [--repeats 3]

One thread a rank; the same model, data and batch in every line. `bubble` is what a schedule leaves idle on equal stages,
(S - 1) / (M + S - 1); `waited` is what each stage measured.
"""
import argparse
import pathlib
import re
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train"))
import harness  # noqa: E402

MODEL = dict(vocab_size=4096, hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=4,
             num_key_value_heads=4, max_position_embeddings=512)
STAGE = re.compile(r"pipeline stage done +stage=(\d+) +step_seconds=([\d.]+) +waited_seconds=([\d.]+) +peak_memory_bytes=(\d+)")
STEPS = 6


def measure(folder, base_hash, tokens, stages, schedule, micro_batches, batch_size):
    job = harness.make_job(folder / f"{stages}_{schedule}_{micro_batches}", folder / "base", base_hash, tokens, steps=STEPS,
                           batch_size=batch_size, micro_batch_size=batch_size // micro_batches,
                           pipeline=dict(stages=stages, schedule=schedule))
    for stale in ("report.json", "metrics.jsonl"):
        (job.parent / stale).unlink(missing_ok=True)
    outcome = harness.train(job, stages)
    found = sorted(STAGE.search(output).groups() for output in outcome.output) if stages > 1 else []
    waited = [float(seconds) / float(of) for _, of, seconds, _ in found]
    peaks = [int(peak) / 1e6 for *_, peak in found] or [outcome.report["peak_memory_bytes"] / 1e6]
    return statistics.median(metric["seconds"] for metric in outcome.metrics[1:]), waited, peaks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base_hash = harness.make_model(folder / "base", **MODEL)
        tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(64, 4096, (257, 257)), 4096)
        print("stages  schedule  micro-batches  s/step  bubble  waited by stage      peak MB by stage")
        for micro_batches in options.micro_batches:
            for stages in options.stages:
                for schedule in ("gpipe", "1f1b") if stages > 1 else ("1f1b",):
                    runs = [measure(folder, base_hash, tokens, stages, schedule, micro_batches, options.batch_size)
                            for _ in range(options.repeats)]
                    seconds, waited, peaks = sorted(runs)[len(runs) // 2]
                    bubble = (stages - 1) / (micro_batches + stages - 1)
                    print(f"{stages:6}  {schedule:8}  {micro_batches:13}  {seconds:6.3f}  {bubble:6.2f}  "
                          f"{' '.join(f'{w:.2f}' for w in waited):18}   {' '.join(f'{p:.0f}' for p in peaks)}", flush=True)


if __name__ == "__main__":
    main()
