#!/usr/bin/env python3
"""Prints failed tests with the end of their output, and skipped tests with their reasons, from a report of
`ctest --output-junit`.

    test_report.py REPORT.xml [LOG]

LOG is the output of `ctest --repeat until-pass:N --output-on-failure`; the report contains only the last try of each test. With LOG
the output ends with the tests that passed at a later try, and the end of their first try's output: it shows races and a crowded
machine.

Reasons are the messages of GTEST_SKIP(), the list of pytest -rs, and lines of scripts that begin with SKIP, SKIPPED or skipped.
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
    """Prints the last lines, which usually hold the reason; cuts long lines."""
    for line in lines[-SHOWN_LINES:]:
        print("  " + line[:SHOWN_COLUMNS])


def print_failure(case, output):
    print(f"FAILED: {case.get('name')} after {float(case.get('time', 0)):.0f} s; the end of its output:")
    print_end(output.rstrip().splitlines())


def retried(log):
    """{test: [(result of the try, passed, output lines), ...]} of the tests that passed at a later try."""
    tries, lines = {}, None
    for line in log.splitlines():
        result = RESULT.match(line)
        if result:
            lines = []
            tries.setdefault(result.group(1), []).append((line.split("***")[-1].strip(), "Passed" in result.group(2), lines))
        elif START.match(line):
            lines = None  # ctest's own output
        elif lines is not None:
            lines.append(line)
    return {name: all_tries for name, all_tries in tries.items() if len(all_tries) > 1 and all_tries[-1][1]}


def print_retried(log):
    for name, tries in retried(log).items():
        print(f"RETRIED: {name} passed at try {len(tries)}; the first try ({tries[0][0]}) ended with:")
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
            why = ["no reason given"]
        for reason in why:
            by_reason.setdefault(reason, []).append(case.get("name"))
    for reason, names in by_reason.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        print(f"SKIPPED {len(names)}: {reason} ({shown})")
    if len(sys.argv) > 2:
        print_retried(pathlib.Path(sys.argv[2]).read_text(errors="replace"))


main()
