"""No test gets a second try: a failure that a repetition hides is a race or a wrong time limit.

A test that needs another try belongs into SECOND_TRIES, with its reason. The list is empty.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECOND_TRIES = {}  # 'Suite.Test': 'reason'
# Options and properties that repeat failed tests: ctest's, GoogleTest's, pytest's, GitLab's.
REPEATS = re.compile(r'--repeat\b|--rerun-failed|until-pass|after-timeout|gtest_repeat|--reruns|--lf\b|--last-failed'
                     r'|pytest-rerunfailures|flaky|^\s*retry:|"repeat"', re.I | re.M)


def repeats_in(text):
    return [match.group().strip() for match in REPEATS.finditer(text)]


def build_files():
    listed = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split() or [str(path.relative_to(ROOT)) for folder in ('scripts', 'cmake', 'tests')
                                      for path in (ROOT / folder).rglob('*')] + ['CMakePresets.json', 'CMakeLists.txt']
    wanted = re.compile(r'(^|/)(CMakeLists\.txt|CMakePresets\.json|[^/]*\.(cmake|sh|ya?ml|ini|toml))$')
    return [ROOT / name for name in names if wanted.search(name) and (ROOT / name).is_file()]


def main():
    # The pattern finds each way to repeat a test.
    for line in ('ctest --repeat until-pass:2', 'ctest --rerun-failed', 'x_test --gtest_repeat=2', 'pytest --reruns 2', 'retry: 2'):
        assert repeats_in(line), line
    assert not repeats_in('xffl retries the command; a repeated search'), 'ordinary words'
    files = build_files()
    assert len(files) > 30, files
    found = [f'{path.relative_to(ROOT)}: {repeat}' for path in files for repeat in repeats_in(path.read_text(errors='replace'))]
    unlisted = [each for each in found if not any(name in each for name in SECOND_TRIES)]
    for each in unlisted:
        print(f'a test gets a second try without a reason: {each}')
    return 1 if unlisted else 0


if __name__ == '__main__':
    sys.exit(main())
