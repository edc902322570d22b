"""The version of CMakeLists.txt is the newest one of CHANGELOG.md and the one of CITATION.cff."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def found(file, pattern):
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.M)
    assert match, f"{file} has no {pattern}"
    return match[1]


class Version(unittest.TestCase):
    def test_is_the_same_everywhere(self):
        version = found("CMakeLists.txt", r"^project\(xffl VERSION ([\d.]+)")
        self.assertEqual(found("CHANGELOG.md", r"^## \[([\d.]+)\]"), version)
        self.assertEqual(found("CITATION.cff", r"^version: (.+)$"), version)

    def test_sections_are_those_of_keep_a_changelog(self):
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        sections = re.findall(r"^### (.+)$", text, re.M)
        self.assertTrue(sections)
        self.assertLessEqual(set(sections), {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"})


if __name__ == "__main__":
    unittest.main()
