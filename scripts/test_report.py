#!/usr/bin/env python3
"""Prints the tests that failed, with the end of what they printed, and those that were skipped, with their reasons, from a
report of `ctest --output-junit`.

    test_report.py REPORT.xml

Reasons are what GTEST_SKIP() said, what pytest -rs lists, and lines of a script's that begin with SKIP, SKIPPED or skipped.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

GTEST = re.compile(r"^.*: Skipped\n(.*(?:\n(?!\s*\n|\[).*)*)", re.MULTILINE)
PYTEST = re.compile(r"^SKIPPED \[\d+\] (.*)$", re.MULTILINE)
SHOWN_LINES, SHOWN_COLUMNS = 25, 300
SCRIPT = re.compile(r"^(?:SKIPPED|SKIP|skipped):? +(?!\[)(.*)$", re.MULTILINE)


def reasons(output):
    found = [" ".join(reason.split()) for pattern in (GTEST, PYTEST, SCRIPT) for reason in pattern.findall(output)]
    return list(dict.fromkeys(reason for reason in found if reason))


def print_failure(case, output):
    """What says why comes near the end; a long line is cut."""
    print(f"FAILED: {case.get('name')} after {float(case.get('time', 0)):.0f} s; the end of its output:")
    for line in output.rstrip().splitlines()[-SHOWN_LINES:]:
        print("  " + line[:SHOWN_COLUMNS])


def main():
    by_reason = {}
    for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
        output = "".join(node.text or "" for node in case.iter("system-out"))
        if case.find("failure") is not None or case.get("status") == "fail":
            print_failure(case, output)
            continue
        why = reasons(output)
        if not why and (case.find("skipped") is not None or case.get("status") in ("notrun", "disabled")):
            why = ["it gives no reason"]
        for reason in why:
            by_reason.setdefault(reason, []).append(case.get("name"))
    for reason, names in by_reason.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        print(f"SKIPPED {len(names)}: {reason} ({shown})")


main()
