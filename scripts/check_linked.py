#!/usr/bin/env python3
"""Checks the shared libraries of a program: scripts/check_linked.py PROGRAM FORBIDDEN_WORD...

Fails if the name of a library contains a FORBIDDEN_WORD, or if ldd finds no file for a library.
"""
import subprocess
import sys


def main():
    program, words = sys.argv[1], sys.argv[2:]
    if not words:
        print("expected: PROGRAM FORBIDDEN_WORD...", file=sys.stderr)
        return 2
    listing = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    bad = [line.strip() for line in listing.splitlines() if any(word in line.split()[0] for word in words)]
    lost = [line.strip() for line in listing.splitlines() if "not found" in line]
    for line in bad + lost:
        print(f"{program}: {line}")
    print(f"{program}: {len(listing.splitlines())} libraries, {len(bad)} forbidden, {len(lost)} not found")
    return 1 if bad or lost else 0


if __name__ == "__main__":
    sys.exit(main())
