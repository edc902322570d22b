"""Each message that docs/operator/messages.md and docs/operator/ssh.md list exists in the source."""
import pathlib
import re
import sys
import tempfile
import unittest

from pages import ROOT, name, table_rows

sys.path.insert(0, str(ROOT / "scripts"))
import extract_messages  # noqa: E402

STATEMENT = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"|[^;{}"])+')
SAMPLE = '''
// throw Error(ErrorKind::kAuth, "in a comment");
throw Error(ErrorKind::kBusy, "the run " + run.str() + " is taken: " +
                                  (alive ? "wait" : "remove it"));
log::warning("old rounds (all) stay", {{"facility", "alba"}});
return system_error("open " + path.string(), errno);
std::fprintf(stderr, "xffl: %s\\n", text.c_str());
app.add_option("--out", out, "folder to \\"create\\"");
'''


def exists(listed: str, texts: list[str]) -> bool:
    """Whether the parts of `listed` between "..." stand in one of `texts`, in their order."""
    pattern = re.compile(".*".join(re.escape(" ".join(part.split())) for part in listed.split("...")), re.S)
    return any(pattern.search(text) for text in texts)


class Messages(unittest.TestCase):
    def test_that_are_listed_exist_in_the_source(self):
        texts = [message.text for message in extract_messages.extract(ROOT)]
        # A message that is built in a variable first stands in some other statement.
        statements = []
        for top in ("apps", "src", "include"):
            for file in [*(ROOT / top).rglob("*.cc"), *(ROOT / top).rglob("*.h")]:
                source = extract_messages.without_comments(file.read_text(encoding="utf-8"))
                statements += [extract_messages.text_of(one[0]) for one in STATEMENT.finditer(source) if '"' in one[0]]
        wrong, count = [], 0
        for page in (ROOT / "docs/operator/messages.md", ROOT / "docs/operator/ssh.md"):
            for line, (message, remedy, *_) in table_rows(page, "message"):
                listed = re.fullmatch(r"`(.+)`", message)
                self.assertTrue(listed, f"{name(page)}:{line}: a message stands in backticks: {message}")
                self.assertTrue(remedy, f"{name(page)}:{line}: a message needs a remedy")
                count += 1
                if not exists(listed[1], texts) and not exists(listed[1], statements):
                    wrong.append(f"{name(page)}:{line}: {listed[1]}")
        self.assertGreater(count, 50)
        self.assertEqual(wrong, [], "these messages are not in the source any more:\n" + "\n".join(wrong))

    def test_are_extracted_with_kind_and_line(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "x.cc"
            file.write_text(SAMPLE)
            found = [(m.line, m.kind, m.text) for m in extract_messages.in_file(file, "x.cc")]
        self.assertEqual(sorted(found), [
            (3, "error.busy", "the run ... is taken: ...wait...remove it"),
            (5, "log.warning", "old rounds (all) stay"),
            (6, "error.system", "open ..."),
            (7, "print", "xffl: ..."),
            (8, "help", 'folder to "create"')])

    def test_missing_messages_are_noticed(self):
        self.assertFalse(exists("the run ... was lost", ["the run ... is taken"]))
        self.assertTrue(exists("run ... is", ["the run ... is taken"]))


if __name__ == "__main__":
    sys.exit(unittest.main())
