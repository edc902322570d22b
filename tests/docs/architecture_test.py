"""The diagram and the table in docs/developer/architecture.md are those of the modules' CMakeLists.txt."""
import itertools
import re
import sys
import unittest

from pages import ROOT, blocks, table_rows

PAGE = ROOT / "docs/developer/architecture.md"
GROUPS = {"coordinator", "trainer", "ground"}


def dependencies() -> dict[str, set[str]]:
    """The modules that each module declares in DEPENDS."""
    found = {}
    for file in (ROOT / "src").glob("*/CMakeLists.txt"):
        text = re.sub(r"#.*", "", file.read_text(encoding="utf-8"))
        for name, body in re.findall(r"xffl_module\((\w+)([^)]*)\)", text):
            declared = re.search(r"\bDEPENDS\s+([\w\s]+)", body)
            found[name] = set(declared[1].split()) - {"TORCH", "PRIVATE_LIBS"} if declared else set()
    return {module: {other for other in others if other in found} for module, others in found.items()}


def edges() -> set[tuple[str, str]]:
    """The arrows of the diagram; one from or to a group stands for all of its modules."""
    text = next(block.text for block in blocks(PAGE) if block.language == "mermaid")
    members, arrows, group = {}, set(), None
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("subgraph"):
            group = line.split()[1]
        elif line == "end":
            group = None
        elif re.match(r"[a-z]", line) and not line.startswith("flowchart"):
            chain = [set(part.split(" & ")) for part in line.split(" --> ")]
            for one in set().union(*chain) - GROUPS:
                members.setdefault(group or one, set()).add(one)
            for left, right in itertools.pairwise(chain):
                arrows |= set(itertools.product(left, right))
    expand = {one: members[one] if one in GROUPS else {one} for arrow in arrows for one in arrow}
    return {pair for left, right in arrows for pair in itertools.product(expand[left], expand[right])}


def reachable(start: str, arrows: dict[str, set[str]]) -> set[str]:
    seen, ahead = set(), [start]
    while ahead:
        for module in arrows.get(ahead.pop(), set()) - seen:
            seen.add(module)
            ahead.append(module)
    return seen


class Architecture(unittest.TestCase):
    def test_the_diagram_shows_the_allowed_includes(self):
        drawn = {}
        for left, right in edges():
            drawn.setdefault(left, set()).add(right)
        declared = dependencies()
        self.assertGreater(len(declared), 15)
        ground = {"base", "job", "checkpoint", "tokens", "pack"}
        for module, others in declared.items():
            missing = others - reachable(module, drawn) - {module}
            self.assertEqual(missing, set(), f"the diagram has no way from {module} to these")
            wrong = drawn.get(module, set()) - reachable(module, declared) - ground
            self.assertEqual(wrong, set(), f"{module} does not depend on these")
        self.assertEqual(set(drawn) - set(declared), set(), "there are no such modules")

    def test_the_table_has_every_module(self):
        listed = {cells[1].strip("`") for _, cells in table_rows(PAGE, "half")}
        self.assertEqual(listed, set(dependencies()))


if __name__ == "__main__":
    sys.exit(unittest.main())
