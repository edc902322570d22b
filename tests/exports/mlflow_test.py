"""scripts/xffl_to_mlflow.py sends each figure once, to a client with MLflow's interface."""
import pathlib
import sys
import unittest
from types import SimpleNamespace

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import xffl_to_mlflow  # noqa: E402


class Client:
    """The part of MlflowClient that the script uses, in memory."""

    def __init__(self):
        self.runs, self.metrics, self.ended, self.fails_after = {}, [], None, None

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "7"

    def search_runs(self, experiments, condition, max_results):
        return [run for run in self.runs.values() if f"'{run.data.tags['xffl.identity']}'" in condition]

    def create_run(self, experiment, start_time, run_name, tags):
        assert start_time == 1772366400000
        self.runs["id"] = SimpleNamespace(info=SimpleNamespace(run_id="id"), data=SimpleNamespace(tags=dict(tags)))
        return self.runs["id"]

    def log_batch(self, run, metrics):
        assert 0 < len(metrics) <= 1000
        if self.fails_after is not None and len(self.metrics) >= self.fails_after:
            raise ConnectionError("the server is away")
        self.metrics += [(one.key, one.step, one.value) for one in metrics]

    def set_tag(self, run, key, value):
        self.runs[run].data.tags[key] = value

    def set_terminated(self, run, status, end_time):
        self.ended = status


def report(published, state="running"):
    rounds = range(1, published + 1)
    measured = published + (state == "completed")
    return {"schema": 1, "project": "p", "run": "0001", "state": state, "config_sha256": "c",
            "first_event_at": "2026-03-01T12:00:00.000Z", "last_event_at": "2026-03-01T20:00:00.000Z",
            "rounds": [{"round": n, "planned_at": f"2026-03-01T12:{n:02}:00.000Z", "published_at": f"2026-03-01T12:{n:02}:30.000Z"}
                       for n in rounds],
            "validation": [{"round": n, "facility": "alba", "set": "it", "loss": 4.0 - n} for n in range(measured)],
            "attempts": [{"round": n, "facility": "alba", "outcome": "accepted", "change": 0.5,
                          "cosine": 0.25 if n > 1 else None} for n in rounds]}


class Mlflow(unittest.TestCase):
    def test_sends_each_value_once(self):
        client = Client()
        self.assertEqual(xffl_to_mlflow.send(report(1), client, "x"), 3)
        self.assertEqual(xffl_to_mlflow.send(report(1), client, "x"), 0)
        self.assertEqual(xffl_to_mlflow.send(report(3), client, "x"), 8)
        self.assertIsNone(client.ended)
        self.assertEqual(xffl_to_mlflow.send(report(3, "completed"), client, "x"), 1)  # the evaluation
        self.assertEqual(xffl_to_mlflow.send(report(3, "completed"), client, "x"), 0)
        self.assertEqual(client.ended, "FINISHED")
        self.assertEqual(len(client.runs), 1)
        self.assertEqual(len(client.metrics), len(set(client.metrics)))
        self.assertEqual([one for one in client.metrics if one[0] == "loss/alba/it"],
                         [("loss/alba/it", n, 4.0 - n) for n in range(4)])
        self.assertIn(("round_seconds", 2, 30.0), client.metrics)
        self.assertEqual([one for one in client.metrics if one[0] == "cosine/alba"], [("cosine/alba", n, 0.25) for n in (2, 3)])

    def test_continues_after_a_failed_call(self):
        client = Client()
        client.fails_after = 3
        with self.assertRaises(ConnectionError):
            xffl_to_mlflow.send(report(3), client, "x")
        client.fails_after = None
        self.assertEqual(xffl_to_mlflow.send(report(3), client, "x"), 8)
        self.assertEqual(len(client.metrics), len(set(client.metrics)))


if __name__ == "__main__":
    unittest.main()
