"""The parser of prometheus_client reads `xffl export prometheus`."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Reader(unittest.TestCase):
    def test_parses_the_figures_of_a_run(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            subprocess.run(["tar", "-xzf", ROOT / "tests/golden/run/killed_in_round_2.tar.gz", "-C", folder], check=True, timeout=60)
            subprocess.run([pathlib.Path(os.environ["XFFL_BIN"]) / "xffl", "export", "prometheus", "-p", folder / "project",
                            folder / "xffl.prom"], check=True, timeout=60, stdout=subprocess.DEVNULL)
            self.assertEqual((folder / "xffl.prom").stat().st_mode & 0o777, 0o644)
            families = {family.name: family for family in
                        text_string_to_metric_families((folder / "xffl.prom").read_text(encoding="utf-8"))}
        self.assertEqual(families["xffl_rounds_published"].type, "counter")
        self.assertEqual(families["xffl_rounds_published"].samples[0].value, 1)
        states = {sample.labels["state"]: sample.value for sample in families["xffl_run_state"].samples}
        self.assertEqual(states, {"running": 0, "stopped": 1, "completed": 0, "cancelled": 0})
        accepted = [sample for sample in families["xffl_attempts"].samples if sample.labels["outcome"] == "accepted"]
        self.assertEqual({sample.labels["facility"] for sample in accepted}, {"alba", "brno"})
        for family in families.values():
            self.assertTrue(family.documentation, family.name)
            self.assertIn(family.type, ("gauge", "counter"), family.name)

    def test_alert_rules_name_metrics_of_the_reference(self):
        listed = set(re.findall(r"^\| `(xffl_\w+)`", (ROOT / "docs/reference/exports.md").read_text(encoding="utf-8"), re.M))
        rules = yaml.safe_load((ROOT / "configs/prometheus/xffl_alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
        self.assertGreater(len(rules), 3)
        for rule in rules:
            self.assertIn("summary", rule["annotations"])
            named = set(re.findall(r"\bxffl_\w+", rule["expr"]))
            self.assertTrue(named)
            self.assertLessEqual(named, listed, rule["alert"])


if __name__ == "__main__":
    unittest.main()
