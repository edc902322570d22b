"""scripts/test_report.py shows what failed, every reason for a skip, of each kind of test, and what passed only at its second
try; and nothing else."""
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
LOG = """Test project /x
      Start  1: a.Racy
 1/12 Test  #3: b.Fine ...........................   Passed    0.01 sec
 2/12 Test  #1: a.Racy ...........................***Failed    2.50 sec
trained twice
4 of 5 Test #9: as text

      Start  1: a.Racy
 3/12 Test  #4: c.Skipped ........................***Skipped   0.01 sec
      Test  #1: a.Racy ...........................   Passed    0.02 sec
 4/12 Test #10: d.Slow ...........................***Timeout   1.01 sec
      Start 10: d.Slow
      Test #10: d.Slow ...........................   Passed    0.00 sec
 5/12 Test #11: broken ...........................***Failed    0.01 sec
twice
      Start 11: broken
      Test #11: broken ...........................***Failed    0.01 sec
twice

75% tests passed, 1 tests failed out of 4
"""
RETRIED = """\
RETRIED: a.Racy passed at try 2; the first try (Failed    2.50 sec) ended with:
  trained twice
  4 of 5 Test #9: as text
RETRIED: d.Slow passed at try 2; the first try (Timeout   1.01 sec) ended with:
"""
EXPECTED = """\
FAILED: broken after 3 s; the end of its output:
""" + 23 * "  line\n" + """\
  expected 1
  SKIPPED: not this time
SKIPPED 2: no network namespaces here: run as root (a.One, a.Two)
SKIPPED 1: test_x.py:4: transformers 4 is not there (py)
SKIPPED 1: no numpy (sh)
SKIPPED 1: no reason given (mute)
"""

with tempfile.TemporaryDirectory() as folder:
    report = pathlib.Path(folder) / "tests.xml"
    report.write_text(REPORT)
    found = subprocess.run([sys.executable, SCRIPT, report], capture_output=True, text=True, check=True).stdout
    assert found == EXPECTED, found
    log = pathlib.Path(folder) / "tests.log"
    log.write_text(LOG)
    found = subprocess.run([sys.executable, SCRIPT, report, log], capture_output=True, text=True, check=True).stdout
    assert found == EXPECTED + RETRIED, found
