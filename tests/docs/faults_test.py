#!/usr/bin/env python3
"""docs/developer/faults.md: each named test exists, and each fault has a test or says that it has none."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GTEST = re.compile(r'^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)', re.M)

tests = {f'{suite}.{name}' for path in (ROOT / 'tests').rglob('*.cc') for suite, name in GTEST.findall(path.read_text())}
problems, faults = [], []
for line in (ROOT / 'docs/developer/faults.md').read_text().splitlines():
    row = re.match(r'\| ([A-F]\d+) \|', line)
    if not row:
        continue
    cells = [cell.strip() for cell in line.strip('|').split('|')]
    if len(cells) != 5:
        problems.append(f'{row[1]}: {len(cells)} cells, expected 5')
        continue
    faults.append(row[1])
    named = re.findall(r'`(\w+\.\w+)`', cells[3])
    problems += [f'{row[1]}: there is no test {name}' for name in named if name not in tests]
    if not named and not cells[3].startswith('see ') and not cells[4].startswith('no test'):
        problems.append(f'{row[1]}: no test is named, and the last cell does not say so')
expected = [f'{letter}{n}' for letter, count in zip('ABCDEF', (10, 13, 17, 14, 8, 13)) for n in range(1, count + 1)]
if faults != expected:
    problems.append(f'the faults are {faults}, expected {expected}')
print('\n'.join(problems) or f'{len(faults)} faults, {len(tests)} tests')
sys.exit(bool(problems))
