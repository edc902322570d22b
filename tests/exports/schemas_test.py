"""Every JSON document of the program xffl has "schema": 1 as its first key, and follows its JSON Schema in docs/reference/schemas."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs/reference/schemas"
XFFL = pathlib.Path(os.environ["XFFL_BIN"]) / "xffl"


def xffl(*words, check=True):
    return subprocess.run([XFFL, *words], check=check, capture_output=True, text=True, timeout=100).stdout


class Schemas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        subprocess.run(["tar", "-xzf", ROOT / "tests/golden/run/killed_in_round_2.tar.gz", "-C", cls.folder], check=True, timeout=60)
        cls.project = cls.folder / "project"

    def check(self, text, name):
        document = json.loads(text)
        self.assertIsInstance(document, dict)
        self.assertEqual(next(iter(document.items())), ("schema", 1))
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
        return document

    def test_status(self):
        self.check(xffl("status", "-p", self.project, "--json"), "status")

    def test_report(self):
        document = self.check(xffl("report", "-p", self.project, "--json"), "report")
        self.assertGreater(len(document["attempts"]), 3)

    def test_usage(self):
        self.check(xffl("usage", "-p", self.project, "--json"), "usage")

    def test_verify(self):
        self.check(xffl("verify", "-p", self.project, "--json", check=False), "verify")

    def test_inspect(self):
        run = self.project / "runs/0001"
        for path in ("r0001/global", "r0001/alba/report.json", "r0000/global/manifest.json",
                     "r0000/global/model.safetensors"):
            self.check(xffl("inspect", "--json", run / path), "inspect")
        lines = xffl("inspect", "--json", run / "journal.db").splitlines()
        self.assertEqual(len(lines), 24)
        for line in lines:
            self.check(line, "journal_event")

    def test_plan(self):
        (self.project / "xffl.yaml").write_text(
            "project: p\nmodel: model\ntraining: {steps_per_round: 1}\n"
            "facilities:\n  alba: {scheduler: process, trainer: {command: [/bin/true]}, data: {train: [/x.tokens]}}\n",
            encoding="utf-8")
        document = self.check(xffl("plan", "-p", self.project, "-w", self.folder / "new", "--offline", "--json"), "plan")
        self.assertEqual(document["facilities"][0]["facility"], "alba")

    def test_hook_event_of_the_page(self):
        text = (ROOT / "docs/operator/hooks.md").read_text(encoding="utf-8")
        self.check(re.search(r"```json\n(.*?)```", text, re.S)[1], "hook_event")

    def test_a_wrong_document_is_noticed(self):
        document = json.loads(xffl("status", "-p", self.project, "--json"))
        for change in ({"rounds": "3"}, {"state": "gone"}, {"rounds_detail": [{"round": 1}]}):
            with self.assertRaises(jsonschema.ValidationError):
                self.check(json.dumps({**document, **change}), "status")

    def test_each_schema_has_a_test(self):
        source = pathlib.Path(__file__).read_text(encoding="utf-8")
        for schema in SCHEMAS.glob("*.json"):
            self.assertIn(f'"{schema.name.removesuffix(".schema.json")}")', source, schema.name)


if __name__ == "__main__":
    unittest.main()
