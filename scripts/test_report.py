#!/usr/bin/env python3
"""Prints failed tests with the end of their output, and skipped tests with their reasons, from reports of
`ctest --output-junit`. The folder of a report names the preset.

    test_report.py REPORT.xml...

Reasons are the messages of GTEST_SKIP(), the list of pytest -rs, and lines of scripts that begin with SKIP, SKIPPED or skipped.
"""
import os
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


def print_end(lines):
    """Prints the last lines, which usually hold the reason; cuts long lines."""
    for line in lines[-SHOWN_LINES:]:
        print("  " + line[:SHOWN_COLUMNS])


def print_failure(preset, case, output):
    print(f"FAILED in {preset}: {case.get('name')} after {float(case.get('time', 0)):.0f} s; the end of its output:")
    print_end(output.rstrip().splitlines())


def main():
    by_reason = {}
    cases = [(report, case) for report in sys.argv[1:] for case in ElementTree.parse(report).iter("testcase")]
    for report, case in cases:
        output = "".join(node.text or "" for node in case.iter("system-out"))
        if case.find("failure") is not None or case.get("status") == "fail":
            print_failure(os.path.basename(os.path.dirname(os.path.abspath(report))), case, output)
            continue
        why = reasons(output)
        if not why and (case.find("skipped") is not None or case.get("status") in ("notrun", "disabled")):
            why = ["no reason given"]
        for reason in why:
            by_reason.setdefault(reason, []).append(case.get("name"))
    for reason, names in by_reason.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        print(f"SKIPPED {len(names)}: {reason} ({shown})")


main()
