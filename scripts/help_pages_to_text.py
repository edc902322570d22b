#!/usr/bin/env python3
"""Turns a folder of LibreOffice help pages into one clean text file: sentences only, a document per page.

    help_pages_to_text.py LANGUAGE HTML_FOLDER OUTPUT

Documents are separated by blank lines; a line is a paragraph. The script keeps paragraphs of prose in LANGUAGE and
drops menu paths, code, short table cells, untranslated text and repeated lines. The result does not depend on the
order of directory entries.
"""

import html.parser
import pathlib
import re
import sys

SENTENCE_END = (".", "!", "?", ".)", ".”", ".»", "…")
BLOCKS = {"p", "li", "h1", "h2", "h3", "h4", "h5", "h6", "td", "th", "div", "tr", "ul", "ol", "table"}
SKIPPED = {"script", "style", "pre", "nav", "header", "footer", "aside", "button", "title", "noscript"}
SKIPPED_CLASSES = {"bascode", "related", "relatedtopics", "howtoget", "howtogetbody", "MAC"}
# Words that are frequent in one language and absent from the others.
MARKERS = {
    "en": "the of and is are this that with for you to from when by an be can".split(),
    "it": "il lo la gli le di che per un una del della nel nella è sono con si questo questa".split(),
    "cs": "v se na je pro nebo a který která které tato tento pokud lze jsou do ze při aby".split(),
}


class Page(html.parser.HTMLParser):
    """Collects the text of each paragraph of an article."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.paragraphs = []
        self.open = []  # (tag, is_skipped) of every open element
        self.text = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag in BLOCKS:
            self.flush()
        if tag in ("br", "img", "input", "link", "meta", "hr", "base"):
            self.text.append(" ")
            return
        classes = set((attributes.get("class") or "").split())
        self.open.append((tag, tag in SKIPPED or bool(classes & SKIPPED_CLASSES)))

    def handle_endtag(self, tag):
        if tag in BLOCKS:
            self.flush()
        if not any(name == tag for name, _ in self.open):
            return
        while self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if not any(skipped for _, skipped in self.open):
            self.text.append(data)

    def flush(self):
        text = " ".join("".join(self.text).replace("\u00ad", "").split())
        self.text = []
        if text:
            self.paragraphs.append(text)


def article_of(page):
    """The part of a page between its navigation and its footer."""
    article = page.partition('<div id="DisplayArea"')[2]
    return "<div" + article.partition('<div id="SearchFrame">')[0]


def language_of(text):
    words = re.findall(r"\w+", text.lower())
    counts = {name: sum(word in markers for word in words) for name, markers in MARKERS.items()}
    return max(counts, key=counts.get) if any(counts.values()) else None


def is_prose(text, language):
    words = text.split()
    if len(text) < 40 or len(words) < 6 or not text.endswith(SENTENCE_END):
        return False
    if not (text[0].isupper() or text[0] in "«“\"È"):
        return False
    letters = sum(c.isalpha() or c.isspace() for c in text)
    if letters < 0.85 * len(text) or re.search(r"[{}<>|=\\]|\(\)|://|[-–▸→] .* [-–▸→]", text):
        return False
    return language_of(text) == language


def tidy(text):
    text = re.sub(r"\s+([.,;:!?)])", r"\1", text)
    return re.sub(r"\(\s+", "(", text)


def main(language, folder, output):
    seen = set()
    documents = []
    for path in sorted(pathlib.Path(folder).rglob("*.html")):
        page = Page()
        page.feed(article_of(path.read_text(encoding="utf-8")))
        page.flush()
        lines = []
        for text in map(tidy, page.paragraphs):
            if text not in seen and is_prose(text, language):
                seen.add(text)
                lines.append(text)
        if lines:
            documents.append("\n".join(lines))
    pathlib.Path(output).write_text("\n\n".join(documents) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
