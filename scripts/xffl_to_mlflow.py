#!/usr/bin/env python3
"""Sends the figures of a run to an MLflow tracking server; repeat it to send the new rounds.

    xffl report -p project --json | scripts/xffl_to_mlflow.py [--uri URI] [--experiment NAME]

Needs `pip install mlflow-skinny`. Without --uri, MLFLOW_TRACKING_URI counts. Metrics: loss/FACILITY/SET of the published model (step:
round of the model), change/FACILITY and round_seconds (step: round).
"""
import argparse
import datetime
import json
import sys
from types import SimpleNamespace

BATCH = 1000  # metrics of one call: MLflow's limit


def milliseconds(time: str) -> int:
    return int(datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp() * 1000)


def metrics_of(report: dict) -> list[tuple[int, str, float, int, int]]:
    """(round whose publication completes the value, name, value, time, step)."""
    published = {one["round"]: one for one in report["rounds"] if one["published_at"]}
    end = max(published, default=0) + 1  # the evaluation, which completes with the run
    times = {number: milliseconds(one["published_at"]) for number, one in published.items()}
    times[end] = milliseconds(report["last_event_at"])
    found = []
    for loss in report["validation"]:
        if (done := loss["round"] + 1) in times:
            found.append((done, f"loss/{loss['facility']}/{loss['set']}", loss["loss"], times[done], loss["round"]))
    for attempt in report["attempts"]:
        number = attempt["round"]
        if attempt["outcome"] == "accepted" and number in published:
            found += [(number, f"{name}/{attempt['facility']}", attempt[name], times[number], number)
                      for name in ("change", "cosine") if attempt[name] is not None]
    for number, one in published.items():
        if one["planned_at"]:
            found.append((number, "round_seconds", (times[number] - milliseconds(one["planned_at"])) / 1000, times[number], number))
    over = report["state"] in ("completed", "cancelled")
    return sorted(one for one in found if one[0] in published or over)


def send(report: dict, client, experiment: str, metric=SimpleNamespace) -> int:
    """Returns the number of sent metrics. MLflow appends metrics, so that the tag xffl.round keeps the last round that was sent."""
    identity = f"{report['project']}/{report['run']}/{report['first_event_at']}"
    known = client.get_experiment_by_name(experiment)
    experiment_id = known.experiment_id if known else client.create_experiment(experiment)
    runs = client.search_runs([experiment_id], f"tags.`xffl.identity` = '{identity}'", max_results=1)
    run = runs[0] if runs else client.create_run(
        experiment_id, start_time=milliseconds(report["first_event_at"]), run_name=f"{report['project']}-{report['run']}",
        tags={"xffl.identity": identity, "xffl.config_sha256": report["config_sha256"]})
    sent = int(run.data.tags.get("xffl.round", 0))
    new = [one for one in metrics_of(report) if one[0] > sent]
    for number in sorted({one[0] for one in new}):  # the tag follows each round: a failed call repeats one round at most
        batch = [metric(key=name, value=value, timestamp=time, step=step) for done, name, value, time, step in new if done == number]
        for begin in range(0, len(batch), BATCH):
            client.log_batch(run.info.run_id, metrics=batch[begin:begin + BATCH])
        client.set_tag(run.info.run_id, "xffl.round", str(number))
    if report["state"] in ("completed", "cancelled"):
        client.set_terminated(run.info.run_id, "FINISHED" if report["state"] == "completed" else "KILLED",
                              milliseconds(report["last_event_at"]))
    return len(new)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uri", help="the tracking server, such as http://localhost:5000 or sqlite:///mlflow.db")
    parser.add_argument("--experiment", default="xffl", help="the experiment's name (default: xffl)")
    options = parser.parse_args()
    report = json.load(sys.stdin)
    if report.get("schema") != 1:
        print("xffl_to_mlflow: expected `xffl report --json` with schema 1 on the standard input", file=sys.stderr)
        return 2
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric
    except ImportError:
        print("xffl_to_mlflow: there is no MLflow here: pip install mlflow-skinny", file=sys.stderr)
        return 2
    print(f"{send(report, MlflowClient(tracking_uri=options.uri), options.experiment, Metric)} metrics sent")
    return 0


if __name__ == "__main__":
    sys.exit(main())
