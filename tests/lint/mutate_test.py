"""scripts/mutate.py counts a mutant as noticed only if a test fails with the mutant, twice, and passes without it."""
import contextlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import time

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / 'scripts/mutate.py'
if sys.version_info < (3, 11):
    sys.exit(77)  # mutate.py reads TOML
specification = importlib.util.spec_from_file_location('mutate', SCRIPT)
mutate = importlib.util.module_from_spec(specification)
specification.loader.exec_module(mutate)

FAILED = '''
50% tests passed, 2 tests failed out of 4

The following tests did not run:
\t  3 - run.Policy.NeedsSshd (Skipped)
\t  4 - run.Policy.Off (Not Run (Disabled))

The following tests FAILED:
\t  1 - facility.Polling.Waits (Failed)
\t  2 - e2e.Federation.Ends (Timeout)
Errors while running CTest
'''


def exit_message(body):
    try:
        body()
    except SystemExit as exit:
        return str(exit.code)
    return None


def runs(pid):
    """Whether the process exists and is no zombie."""
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False


class Ctest:
    """Answers run(): {test: a predicate of (mutant, number of the test's runs so far)}, in stages named by their arguments."""

    def __init__(self, stages):
        self.stages = stages
        self.runs = {}
        self.asked = []

    def __call__(self, arguments, mutant, exclude):
        self.asked.append((arguments[0], mutant))
        if arguments[0] == '--no-tests=error':
            name = arguments[2].strip('^$').replace('\\', '')
            tests = {name: test for stage in self.stages.values() for each, test in stage.items() if each == name}
            assert tests, f'no test is named {name}'
        else:
            tests = self.stages[arguments[0]]
        failed = []
        for name, fails in tests.items():
            if name in exclude:
                continue
            self.runs[name] = self.runs.get(name, 0) + 1
            if fails(mutant, self.runs[name]):
                failed.append(name)
        return failed


def noticed(stages):
    ctest, left_out = Ctest(stages), set()
    with contextlib.redirect_stdout(io.StringIO()):
        return mutate.noticing_test('a-bug', [[name] for name in stages], left_out, ctest), left_out, ctest


def main():
    # ctest's output.
    assert mutate.failed_tests(8, FAILED) == ['facility.Polling.Waits', 'e2e.Federation.Ends']
    assert mutate.failed_tests(0, '100% tests passed') == []
    message = exit_message(lambda: mutate.failed_tests(1, 'CMake Error: No such preset: "dev"'))
    assert message and 'No such preset' in message, message
    message = exit_message(lambda: mutate.failed_tests(-11, ''))
    assert message and 'exit code -11' in message, message

    # A test's processes end with it; other processes stay.
    with subprocess.Popen(['sleep', '300']) as other:
        code, output = mutate.run_group(['sh', '-c', 'sleep 300 & echo $!; exit 3'], '/', dict(os.environ))
        assert code == 3 and other.poll() is None, (code, output)
        other.kill()
    end = time.monotonic() + 120
    while runs(int(output)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not runs(int(output)), 'a process of the test is left'

    # The tests of a module include the programs with other names; a mutant of a program has tests, too.
    assert re.match(mutate.stages('kernels')[0][1], 'kernels_cpu.Mean.Rounds')
    assert re.match(mutate.stages('train')[0][1], 'train.Loop.Ends') and not re.match(mutate.stages('train')[0][1], 'kernels.A.B')
    listed = {mutant['module'] for mutant in mutate.load(mutate.ROOT / 'tests/mutants/mutants.toml')}
    assert listed <= {'apps'} | {path.name for path in (mutate.ROOT / 'src').iterdir()}, listed
    for module in listed:
        assert all(stage[0] in ('-R', '-L') for stage in mutate.stages(module)), module

    with_mutant = lambda mutant, run: mutant is not None
    always = lambda mutant, run: True
    never = lambda mutant, run: False
    first_time = lambda mutant, run: run == 1
    # The first stage with a failing test decides; later stages are not run.
    seen, left_out, ctest = noticed({'unit': {'u.A': never, 'u.B': with_mutant}, 'e2e': {'e.A': with_mutant}})
    assert seen == 'u.B' and not left_out and ('e2e', 'a-bug') not in ctest.asked, ctest.asked
    assert ('--no-tests=error', None) in ctest.asked, 'the test was not run without the mutant'
    assert noticed({'unit': {'u.A': never}, 'e2e': {'e.A': with_mutant}})[0] == 'e.A'
    assert noticed({'unit': {'u.A': never}, 'e2e': {'e.A': never}})[0] is None
    # A test that fails without the mutant, too, notices nothing; the other tests of the stage still count.
    assert noticed({'e2e': {'e.A': always}})[:2] == (None, {'e.A'})
    assert noticed({'e2e': {'e.A': always, 'e.B': with_mutant}})[:2] == ('e.B', {'e.A'})
    # A test that fails once and then passes notices nothing.
    assert noticed({'e2e': {'e.A': first_time}})[:2] == (None, set())
    assert noticed({'e2e': {'e.A': first_time, 'e.B': with_mutant}})[:2] == ('e.B', set())


main()
