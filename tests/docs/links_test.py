"""No page links to a missing file or anchor or names a missing source file, and the index lists every page."""
import re
import sys
import unittest

from pages import ROOT, anchors, links, name, pages, prose


class Links(unittest.TestCase):
    def test_links_lead_to_existing_files_and_anchors(self):
        wrong, count = [], 0
        for page in pages():
            for line, target in links(page):
                if re.match(r"[a-z]+:", target):
                    continue
                count += 1
                path, _, anchor = target.partition("#")
                file = (page.parent / path).resolve() if path else page
                if not file.exists():
                    wrong.append(f"{name(page)}:{line}: {target}: there is no such file")
                elif anchor and anchor not in anchors(file):
                    wrong.append(f"{name(page)}:{line}: {target}: {name(file)} has no such heading")
        self.assertGreater(count, 50)
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_the_index_lists_every_page(self):
        index = ROOT / "docs/README.md"
        listed = {(index.parent / target.partition("#")[0]).resolve() for _, target in links(index)}
        missing = [name(page) for page in (ROOT / "docs").rglob("*")
                   if page.suffix in (".md", ".py") and page != index and page not in listed
                   and page.parent.name != "decisions"]
        self.assertEqual(missing, [], "docs/README.md does not list these pages")

    def test_comments_name_existing_pages(self):
        wrong = []
        for top in ("apps", "src", "include", "scripts", "tests", "configs", "templates", "docs"):
            for file in (ROOT / top).rglob("*"):
                if not file.is_file() or file.suffix in (".pyc", ".whl"):
                    continue
                text = file.read_text(encoding="utf-8", errors="replace")
                for match in re.finditer(r"(?<![\w/.-])docs/[\w/.-]+\.(?:md|py)\b", text):
                    if not (ROOT / match[0]).exists():
                        wrong.append(f"{name(file)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}")
        self.assertEqual(wrong, [], "there are no such pages")

    def test_source_files_named_in_pages_exist(self):
        tops = ("apps", "cmake", "configs", "include", "scripts", "src", "templates", "tests")
        names = {path.name for top in (*tops, "docs") for path in (ROOT / top).rglob("*")}
        wrong, count = [], 0
        for page in pages():
            for line, text in prose(page):
                text = re.sub(r"\]\([^)]*\)", "", text)  # the test above checks links
                for match in re.finditer(rf"(?<![\w/.<-])(?:{'|'.join(tops)})/[\w./*-]*[\w*]|(?<=`)\w+\.(?:cc|h|cu|py|sh|cmake)(?=`)", text):
                    count += 1
                    if not (match[0] in names or any(ROOT.glob(match[0])) or any(ROOT.glob(match[0] + "*"))):
                        wrong.append(f"{name(page)}:{line}: {match[0]}")
        self.assertGreater(count, 50)
        self.assertEqual(wrong, [], "there are no such files")

    def test_anchors_follow_githubs_rule(self):
        self.assertIn("xffl-status---json", anchors(ROOT / "docs/reference/status_json.md"))
        self.assertIn("a-trainer-of-your-own", anchors(ROOT / "docs/reference/job_json.md"))


if __name__ == "__main__":
    sys.exit(unittest.main())
