#!/usr/bin/env python3
"""Prints the tests that failed, with the end of what they printed, and those that were skipped, with their reasons, from a
report of `ctest --output-junit`.

    test_report.py REPORT.xml [LOG]

LOG is what `ctest --repeat until-pass:N --output-on-failure` printed: the report knows last tries only. At the end stand the tests
that passed at a later try, with the end of what the first one printed: a race is seen there, or a crowded machine.

Reasons are what GTEST_SKIP() said, what pytest -rs lists, and lines of a script's that begin with SKIP, SKIPPED or skipped.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

GTEST = re.compile(r"^.*: Skipped\n(.*(?:\n(?!\s*\n|\[).*)*)", re.MULTILINE)
PYTEST = re.compile(r"^SKIPPED \[\d+\] (.*)$", re.MULTILINE)
SHOWN_LINES, SHOWN_COLUMNS = 25, 300
RESULT = re.compile(r"^ *(?:\d+/\d+)? *Test +#\d+: (\S+) \.*(\*\*\*[A-Z]| +Passed).* sec\s*$")
START = re.compile(r"^ +Start +\d+: ")
SCRIPT = re.compile(r"^(?:SKIPPED|SKIP|skipped):? +(?!\[)(.*)$", re.MULTILINE)


def reasons(output):
    found = [" ".join(reason.split()) for pattern in (GTEST, PYTEST, SCRIPT) for reason in pattern.findall(output)]
    return list(dict.fromkeys(reason for reason in found if reason))


def print_end(lines):
    """What says why comes near the end; a long line is cut."""
    for line in lines[-SHOWN_LINES:]:
        print("  " + line[:SHOWN_COLUMNS])


def print_failure(case, output):
    print(f"FAILED: {case.get('name')} after {float(case.get('time', 0)):.0f} s; the end of its output:")
    print_end(output.rstrip().splitlines())


def retried(log):
    """{test: [(what ctest says of the try, its lines), ...]} of the tests that passed after another try."""
    tries, lines = {}, None
    for line in log.splitlines():
        result = RESULT.match(line)
        if result:
            lines = []
            tries.setdefault(result.group(1), []).append((line.split("***")[-1].strip(), "Passed" in result.group(2), lines))
        elif START.match(line):
            lines = None  # ctest's own words again
        elif lines is not None:
            lines.append(line)
    return {name: all_tries for name, all_tries in tries.items() if len(all_tries) > 1 and all_tries[-1][1]}


def print_retried(log):
    for name, tries in retried(log).items():
        print(f"RETRIED: {name} passed at try {len(tries)}; the first one ({tries[0][0]}) ended with:")
        print_end("\n".join(tries[0][2]).rstrip().splitlines())


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
    if len(sys.argv) > 2:
        print_retried(pathlib.Path(sys.argv[2]).read_text(errors="replace"))


main()
