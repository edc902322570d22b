#!/usr/bin/env python3
"""Lists every message that a user of the programs can see, as it stands in the source.

    scripts/extract_messages.py [--kind KIND ...] [--json] [FOLDER]

A message is the text of an Error, a log event, a line printed to the terminal, or a help text of the command line. Parts of a message
that the program computes are shown as "...". Kinds are error.<ErrorKind> (error.auth, error.config, ...), error.system, context,
log.error, log.warning, log.info, log.debug, print, and help. Each line has FILE:LINE, the kind and the text, apart by tabs.

The search follows the source's conventions (Error(ErrorKind::k..., ...), log::warning(...), add_option(...)): a text that is built in
a variable first appears where its pieces are literals only if they are arguments of one of these calls.
"""
import argparse
import json
import pathlib
import re
import sys
from typing import Iterator, NamedTuple

HOLE = "..."
CALLS = [
    (re.compile(r"\bError\s*(?:\w+\s*)?\(\s*(?:xffl::)?ErrorKind::k(\w+)\s*,"), lambda m: "error." + m[1].lower(), None),
    (re.compile(r"\bsystem_error\("), lambda m: "error.system", 0),
    (re.compile(r"\.add_context\("), lambda m: "context", 0),
    (re.compile(r"\bwith_context\("), lambda m: "context", 0),
    (re.compile(r"\blog::(error|warning|info|debug)\("), lambda m: "log." + m[1], 0),
    (re.compile(r"(?:std::)?\bprintf\("), lambda m: "print", 0),
    (re.compile(r"(?:std::)?\bfprintf\((?=stderr|stdout)"), lambda m: "print", 1),
    (re.compile(r"\b(?:fail|refuse)\("), lambda m: "error.field", None),
    (re.compile(r"\badd_subcommand\("), lambda m: "help", 1),
    (re.compile(r"\badd_option(?:_function)?(?:<[^(]*>)?\("), lambda m: "help", 2),
    (re.compile(r"\badd_flag(?:_callback|_function)?(?:<[^(]*>)?\("), lambda m: "help", 2),
]
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "r": "\r", "0": "\0"}


class Message(NamedTuple):
    file: str
    line: int
    kind: str
    text: str


def without_comments(source: str) -> str:
    """Comments become blanks, so that positions stay; literals are left alone."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'', re.S)
    def blank(match):
        text = match[0]
        return re.sub(r"[^\n]", " ", text) if text.startswith(("//", "/*")) else text
    return pattern.sub(blank, source)


def arguments(source: str, begin: int) -> list[str]:
    """The arguments of a call whose opening parenthesis ends before `begin`, as source text."""
    found, depth, start, at = [], 0, begin, begin
    while at < len(source):
        char = source[at]
        if char == '"':
            literal = LITERAL.match(source, at)
            if literal is None:
                break
            at = literal.end()
            continue
        if char == "'":
            quoted = re.compile(r"'(?:[^'\\\n]|\\.)+'").match(source, at)
            at = quoted.end() if quoted else at + 1
            continue
        if char in "([{":
            depth += 1
        elif char in ")]}":
            if depth == 0:
                return found + [source[start:at]]
            depth -= 1
        elif char == "," and depth == 0:
            found.append(source[start:at])
            start = at + 1
        at += 1
    return found


def text_of(expression: str) -> str:
    """The literals of an expression; "..." for everything between them that is computed."""
    text, at = "", 0
    for literal in LITERAL.finditer(expression):
        between = expression[at:literal.start()]
        if re.sub(r"[\s+()]|std::string|std::string_view", "", between):
            text += HOLE
        text += re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[0]), literal[1])
        at = literal.end()
    if re.sub(r"[\s+();]", "", expression[at:]):
        text += HOLE
    text = re.sub(r"%-?[0-9.*]*(?:z|l|ll)?[sdiufgex]", HOLE, text)
    return re.sub(r"(?:\.\.\.\s*){2,}", HOLE, " ".join(text.split()))


def in_file(path: pathlib.Path, name: str) -> Iterator[Message]:
    source = without_comments(path.read_text(encoding="utf-8"))
    for pattern, kind, argument in CALLS:
        for match in pattern.finditer(source):
            found = arguments(source, match.end())
            if argument is None:
                expression = ", ".join(found)
            elif argument < len(found):
                expression = found[argument]
            else:
                continue
            text = text_of(expression)
            if re.search(r"\w", text.replace(HOLE, "")):
                yield Message(name, source.count("\n", 0, match.start()) + 1, kind(match), text)


def extract(folder: pathlib.Path) -> list[Message]:
    """All messages of the programs in `folder`, the repository's root."""
    messages = []
    for top in ("apps", "src", "include"):
        for path in sorted((folder / top).rglob("*")):
            if path.suffix in (".cc", ".h"):
                messages += in_file(path, str(path.relative_to(folder)))
    return sorted(messages)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=pathlib.Path(__file__).resolve().parents[1], type=pathlib.Path)
    parser.add_argument("--kind", nargs="+", default=[], help="only kinds that begin so, such as error.auth or log.warning")
    parser.add_argument("--json", action="store_true", help="a JSON list instead of lines")
    options = parser.parse_args()
    messages = [m for m in extract(options.folder) if not options.kind or m.kind.startswith(tuple(options.kind))]
    if options.json:
        json.dump([m._asdict() for m in messages], sys.stdout, indent=1)
    else:
        for message in messages:
            print(f"{message.file}:{message.line}\t{message.kind}\t{message.text}")
    return 0 if messages else 1


if __name__ == "__main__":
    sys.exit(main())
