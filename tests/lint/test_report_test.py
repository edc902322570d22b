"""scripts/test_report.py prints exactly the failed tests and the reasons of skipped tests of each kind, from several reports."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/test_report.py"
LINES = 100 * "line\n"
REPORT = f"""<?xml version="1.0"?><testsuite>
<testcase name="a.One" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>[ RUN      ] One
/src/tests/testbed_test.cc:12: Skipped
no network namespaces here:
run as root

[  SKIPPED ] One (0 ms)
</system-out></testcase>
<testcase name="a.Two" status="notrun"><skipped message=""/><system-out>/x.cc:1: Skipped
no network namespaces here: run as root

[  SKIPPED ] Two (0 ms)
</system-out></testcase>
<testcase name="py" status="run"><system-out>..s
SKIPPED [2] test_x.py:4: transformers 4 is not there
</system-out></testcase>
<testcase name="sh" status="notrun"><skipped message=""/><system-out>SKIPPED: no numpy
</system-out></testcase>
<testcase name="mute" status="notrun"><skipped message=""/><system-out>nothing</system-out></testcase>
<testcase name="broken" time="3.4" status="fail"><failure message=""/><system-out>{LINES}expected 1
SKIPPED: not this time
</system-out></testcase>
<testcase name="fine" status="run"><system-out>[       OK ] fine, none skipped</system-out></testcase>
</testsuite>"""
MORE = """<?xml version="1.0"?><testsuite>
<testcase name="b.Slow" status="run"><system-out>SKIPPED: no numpy
</system-out></testcase>
</testsuite>"""
EXPECTED = """\
FAILED in asan: broken after 3 s; the end of its output:
""" + 23 * "  line\n" + """\
  expected 1
  SKIPPED: not this time
SKIPPED 2: no network namespaces here: run as root (a.One, a.Two)
SKIPPED 1: test_x.py:4: transformers 4 is not there (py)
SKIPPED 2: no numpy (sh, b.Slow)
SKIPPED 1: no reason given (mute)
"""

with tempfile.TemporaryDirectory() as folder:
    report = pathlib.Path(folder) / "asan/tests.xml"
    report.parent.mkdir()
    report.write_text(REPORT)
    more = pathlib.Path(folder) / "more.xml"
    more.write_text(MORE)
    found = subprocess.run([sys.executable, SCRIPT, report, more], capture_output=True, text=True, check=True).stdout
    assert found == EXPECTED, found
