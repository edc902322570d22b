"""The repository's Markdown pages: their headings, links, code blocks and tables."""
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Block(NamedTuple):
    page: pathlib.Path
    line: int  # of the first line inside
    language: str
    marker: str  # "run" where <!-- run --> stands on the line before, else ""
    text: str


def pages() -> list[pathlib.Path]:
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def name(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: pathlib.Path) -> list[Block]:
    found, before, inside = [], "", None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.fullmatch(r"\s*```(\w*)", line)
        if inside is not None and fence:
            indent = inside[3]
            text = "\n".join(one.removeprefix(indent) for one in inside[2])
            found.append(Block(page, inside[0], inside[1], inside[4], text))
            inside = None
        elif inside is not None:
            inside[2].append(line)
        elif fence:
            marker = re.fullmatch(r"\s*<!-- (.*) -->", before)
            inside = (number + 1, fence[1], [], line[:len(line) - len(line.lstrip())], marker[1] if marker else "")
        before = line
    assert inside is None, f"{name(page)}: a code block has no end"
    return found


def prose(page: pathlib.Path) -> list[tuple[int, str]]:
    """The lines outside of code blocks, with their numbers."""
    lines, inside = [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(r"\s*```", line):
            inside = not inside
        elif not inside:
            lines.append((number, line))
    return lines


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    found: set[str] = set()
    for _, line in prose(page):
        heading = re.match(r"#+ (.*)", line)
        if not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
        base = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        anchor, count = base, 0
        while anchor in found:
            count += 1
            anchor = f"{base}-{count}"
        found.add(anchor)
    return found


def links(page: pathlib.Path) -> list[tuple[int, str]]:
    """The targets of the links outside of code."""
    found = []
    for number, line in prose(page):
        plain = re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]), line)
        found += [(number, match[1]) for match in re.finditer(r"\]\(([^)\s]+)\)", plain)]
    return found


def table_rows(page: pathlib.Path, first: str) -> list[tuple[int, list[str]]]:
    """The rows of all tables whose first heading is `first`: line number and cells."""
    rows, inside = [], False
    for number, line in prose(page):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if cells[0] == first:
            inside = True
        elif inside and not re.fullmatch(r":?-+:?", cells[0]):
            rows.append((number, cells))
    return rows
