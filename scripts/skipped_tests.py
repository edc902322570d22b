#!/usr/bin/env python3
"""Prints the tests that were skipped, each with its reason, from a report of `ctest --output-junit`.

    skipped_tests.py REPORT.xml

Reasons are what GTEST_SKIP() said, what pytest -rs lists, and lines of a script's that begin with SKIP, SKIPPED or skipped.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

GTEST = re.compile(r"^.*: Skipped\n(.*(?:\n(?!\s*\n|\[).*)*)", re.MULTILINE)
PYTEST = re.compile(r"^SKIPPED \[\d+\] (.*)$", re.MULTILINE)
SCRIPT = re.compile(r"^(?:SKIPPED|SKIP|skipped):? +(?!\[)(.*)$", re.MULTILINE)


def reasons(output):
    found = [" ".join(reason.split()) for pattern in (GTEST, PYTEST, SCRIPT) for reason in pattern.findall(output)]
    return list(dict.fromkeys(reason for reason in found if reason))


def main():
    by_reason = {}
    for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
        output = "".join(node.text or "" for node in case.iter("system-out"))
        why = reasons(output)
        if not why and (case.find("skipped") is not None or case.get("status") in ("notrun", "disabled")):
            why = ["it gives no reason"]
        for reason in why:
            by_reason.setdefault(reason, []).append(case.get("name"))
    for reason, names in by_reason.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        print(f"SKIPPED {len(names)}: {reason} ({shown})")


main()
