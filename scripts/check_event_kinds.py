#!/usr/bin/env python3
"""Checks that src/history/events.cc alone names the kinds of the journal's events and the fields of their payloads.

    scripts/check_event_kinds.py [SOURCE_FOLDER]     exit code 0: clean; 1: problems, one per line
"""
import pathlib
import re
import sys

TABLE = "src/history/events.cc"
KIND = re.compile(r'\bkind<\w+>\(\s*"([a-z_]+)"')
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
COMMENT = re.compile(r"(?:^|[;{}\s])//.*$", re.M)
PAYLOAD = re.compile(r'\bpayload(?:\.(?:at|value|contains|find)\(|\[)\s*"')
# Words of the output that are spelled like a kind, and the default of the key hooks.on, which lists kinds.
ALLOWED_WORDS = {
    "include/xffl/config/experiment.h": {"facility_missing", "facility_paused", "run_completed", "run_stopped"},
    "src/exports/prometheus.cc": {"submitted"},
    "src/status/status.cc": {"submitted", "pushed", "aggregated", "published"},
    "src/facility/describe.cc": {"submitted", "pushed"},
    "src/facility/machine.cc": {"pushed"},
}


def check_file(path, name, kinds):
    text = COMMENT.sub("", path.read_text())
    allowed = ALLOWED_WORDS.get(name, set())
    found = kinds.intersection(LITERAL.findall(text))
    problems = [f'{name}: the event kind "{kind}" belongs into {TABLE}' for kind in sorted(found - allowed)]
    if PAYLOAD.search(text):
        problems.append(f"{name}: fields of payloads belong into {TABLE}")
    return problems


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    kinds = set(KIND.findall((root / TABLE).read_text()))
    if not kinds:
        print(f"{root / TABLE}: no kind found", file=sys.stderr)
        return 1
    problems, count = [], 0
    for folder in ("src", "apps", "include"):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in (".h", ".cc") or name == TABLE:
                continue
            count += 1
            problems += check_file(path, name, kinds)
    for problem in problems:
        print(problem)
    print(f"{len(kinds)} event kinds, {count} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
