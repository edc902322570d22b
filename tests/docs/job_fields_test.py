"""docs/reference/job_json.md lists exactly the fields of job.json and report.json, and docs/reference/journal_events.md all kinds.

The fields are those of tests/golden/job, which the tests of job/ hold against the reader and the writer.
"""
import json
import re
import sys
import unittest

from pages import ROOT, table_rows

# Fields that one row describes with its inner keys, written {a, b} in its second cell.
WHOLE = {"base_model_packed", "validation", "training.schedule", "training.lora", "training.groups", "training.pipeline"}


def fields(value, prefix="") -> set[str]:
    found = set()
    for key, inner in value.items():
        path = prefix + key
        if isinstance(inner, dict) and path not in WHOLE:
            found |= fields(inner, path + ".")
        else:
            found.add(path)
    return found


class JobFields(unittest.TestCase):
    def rows(self, heading_contains):
        """{field: type cell} of the table of fields that follows the heading."""
        page = ROOT / "docs/reference/job_json.md"
        text = page.read_text(encoding="utf-8").splitlines()
        begin = next(n for n, line in enumerate(text, 1) if line == "## " + heading_contains)
        end = next((n for n, line in enumerate(text, 1) if n > begin and line.startswith("## ")), len(text) + 1)
        found = {}
        for number, cells in table_rows(page, "field"):
            if begin < number < end:
                for field in re.findall(r"`([\w.]+)`", cells[0]):
                    self.assertNotIn(field, found, "listed twice")
                    found[field] = cells[1]
        return found

    def check(self, heading, golden, optional=frozenset()):
        document = json.loads((ROOT / "tests/golden/job" / golden).read_text())
        rows, expected = self.rows(heading), fields(document) | optional
        # A report's key is copied, not described again.
        if heading == "report.json":
            expected = {field for field in expected if not field.startswith("key.")} | {"key"}
        self.assertEqual(set(rows), expected)
        for field in WHOLE & set(rows):
            value = document
            for part in field.split("."):
                value = value[part]
            value = value[0] if isinstance(value, list) else value
            self.assertEqual(set(re.search(r"\{(.*)\}", rows[field])[1].split(", ")), set(value), field)

    def test_of_a_job_are_all_listed(self):
        self.check("job.json", "job.json", {f"training.{key}" for key in
                                           ("optimizer", "momentum", "nesterov", "validation_batch_size", "epochs", "total_rounds",
                                            "attention", "schedule.decay_ratio", "lora.rank_stabilized", "lora.weight_decomposed",
                                            "lora.modules_to_save")})

    def test_of_a_report_are_all_listed(self):
        self.check("report.json", "report.json", {"gpu_energy_joules", "optimizer_lost", "train_accuracy", "train_accuracy_last", "samples_per_second",
                                                    "tokens_per_second_per_rank", "startup_seconds", "evaluation_seconds", "environment"})


class JournalEvents(unittest.TestCase):
    def test_of_the_golden_journal_are_listed(self):
        listed = set()
        for _, cells in table_rows(ROOT / "docs/reference/journal_events.md", "kind"):
            listed |= set(re.findall(r"`(\w+)`", cells[0]))
        recorded = {json.loads(line)["kind"]
                    for line in (ROOT / "tests/golden/journal/journal.jsonl").read_text().splitlines()}
        self.assertTrue(recorded)
        self.assertEqual(recorded - listed, set())
        source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src/history").glob("*.cc"))
        self.assertEqual({kind for kind in listed if f'"{kind}"' not in source}, set(), "no kinds of src/history")


if __name__ == "__main__":
    sys.exit(unittest.main())
