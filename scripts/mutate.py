#!/usr/bin/env python3
"""Applies one-line bugs to a copy of the sources, runs the tests against each bug, and prints how many the tests notice.

All mutants of tests/mutants/mutants.toml are compiled into one build of the copy (build/mutants), each behind a condition on the
environment variable XFFL_MUTANT. So a mutant costs the time of its tests, and not of a build. For each mutant the tests run in
stages: the unit tests of the mutant's module, then the unit tests of the modules above it, then whole federations. The first
failure ends the mutant, if the same test then passes without the mutant and fails once more with it. Before the mutants, the same
tests run once without a mutant: a test that fails there is left out.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

try:
    import tomllib
except ImportError:
    sys.exit("mutate: Python 3.11 or newer is needed (tomllib)")

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / 'build/mutants/tree'
HARMS = ('severe', 'medium', 'low')

# The mutated file gets this text: the mutant is on if the environment variable has the mutant's name.
PROLOGUE = '''#ifndef XFFL_MUTANT_DEFINED
#define XFFL_MUTANT_DEFINED
#include <cstdlib>
#include <string_view>
namespace {
[[maybe_unused]] bool xffl_mutant(std::string_view id) {
  static const char* const kChosen = std::getenv("XFFL_MUTANT");
  return kChosen != nullptr && id == kChosen;
}
}  // namespace
#endif
'''

COORDINATOR = ['config', 'plan', 'remote', 'submit', 'transfer', 'aggregate', 'history', 'facility', 'upkeep', 'run', 'status',
               'contract']
TRAINER = ['comm', 'llama', 'shard', 'train', 'kernels']
GROUND = ['base', 'job', 'checkpoint', 'pack', 'tokens']
# Programs of tests with a name other than their module's.
MORE_TESTS = {'kernels': ['kernels_cpu', 'kernels_block'], 'train': ['trainer_cases']}
# The tests of these modules verify whole federations.
FEDERATED = ['verify']
# The sources below apps/ have no module; these programs call theirs.
APPS = ['aggregate_command', 'tokenize']


def stages(module):
    """The tests of a module's mutant, nearest first, as arguments of ctest."""
    def unit(modules):
        names = [name for each in modules for name in [each, *MORE_TESTS.get(each, [])]]
        return ['-R', '^(' + '|'.join(names) + r')\.', '-LE', 'python|testbed|e2e']
    federations = ['-L', 'e2e', '-LE', 'testbed']
    trainings = ['-R', r'^train\.python\.']
    if module == 'apps':
        return [unit(APPS), federations, trainings]
    if module in FEDERATED:
        return [['-R', rf'^{module}\.', '-LE', 'python|testbed'], federations]
    own = unit([module])
    if module == 'tokenize':  # its tables are compared with pyarrow's and datasets'
        return [own, ['-R', r'^tokenize\.same_tables$'], unit(GROUND)]
    if module in COORDINATOR:
        return [own, unit([m for m in COORDINATOR if m != module]), federations]
    if module in TRAINER:
        return [own, unit([m for m in TRAINER if m != module]), trainings]
    return [own, unit([m for m in GROUND + COORDINATOR + TRAINER if m != module]), federations, trainings]


def load(path):
    with open(path, 'rb') as file:
        mutants = tomllib.load(file)['mutant']
    for mutant in mutants:
        parts = pathlib.PurePath(mutant['file']).parts
        mutant['module'] = parts[1] if parts[0] == 'src' else parts[0]
    return mutants


def problems_of(mutants, root=ROOT):
    """The mutants that do not fit the sources; a list of messages."""
    problems = []
    for name in {m['id'] for m in mutants if sum(n['id'] == m['id'] for n in mutants) > 1}:
        problems.append(f'{name}: the name occurs twice')
    for mutant in mutants:
        text = (root / mutant['file']).read_text() if (root / mutant['file']).exists() else None
        if mutant.get('harm') not in HARMS:
            problems.append(f"{mutant['id']}: harm is none of {', '.join(HARMS)}")
        elif text is None:
            problems.append(f"{mutant['id']}: there is no file {mutant['file']}")
        elif text.count(mutant['old']) != 1:
            problems.append(f"{mutant['id']}: its `old` occurs {text.count(mutant['old'])} times in {mutant['file']}, expected once")
        elif 'MUTANT' not in mutant['new']:
            problems.append(f"{mutant['id']}: its `new` does not use MUTANT, so the bug would always be on")
        elif condition(mutant) not in mutated(text, [m for m in mutants if m['file'] == mutant['file']]):
            problems.append(f"{mutant['id']}: an earlier mutant of {mutant['file']} replaces the same text")
    return problems


def condition(mutant):
    return f'xffl_mutant("{mutant["id"]}")'


def mutated(text, mutants):
    for mutant in mutants:
        text = text.replace(mutant['old'], mutant['new'].replace('MUTANT', condition(mutant)))
    return text


def write_copy(mutants):
    """Writes the tracked sources with all mutants into COPY; a file that does not change keeps its time."""
    names = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, check=True, capture_output=True).stdout.decode().split('\0')
    for name in filter(None, names):
        source, target = ROOT / name, COPY / name
        if not source.exists():
            continue
        data = source.read_bytes()
        own = [m for m in mutants if m['file'] == name]
        if own:
            data = (PROLOGUE + '#line 1\n' + mutated(data.decode(), own)).encode()
        if target.exists() and target.read_bytes() == data:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(source.stat().st_mode)
    dependencies = COPY / '.deps'
    if not dependencies.exists() and (ROOT / '.deps').exists():
        dependencies.symlink_to((ROOT / '.deps').resolve())


def failed_tests(returncode, output):
    """The names of the failed tests in ctest's output. A ctest that fails without a failed test says nothing about a mutant."""
    failed = re.findall(r'^\s*\d+ - (\S+) \((?!Skipped|Not Run \(Disabled)', output, re.M)
    if returncode != 0 and not failed:
        sys.exit(f'mutate: ctest itself failed with exit code {returncode}: {output[-500:].strip()}')
    return failed


def run_tests(arguments, jobs, mutant=None, exclude=(), stop=True):
    """Runs ctest; the names of the failed tests."""
    environment = dict(os.environ, XFFL_MUTANT=mutant or '', GTEST_BRIEF='1')
    command = ['ctest', '--preset', 'dev', f'-j{jobs}', '--timeout', '300', *arguments]
    if stop:
        command.append('--stop-on-failure')
    if exclude:
        command += ['-E', '^(' + '|'.join(re.escape(name) for name in exclude) + ')$']
    return failed_tests(*run_group(command, COPY, environment))


def run_group(command, folder, environment):
    """Runs a command; its exit code and output. On return no process of the command's process group runs.

    A test that a mutant fails may leave processes. They write to a file, because a process that is left would keep a pipe open.
    Processes that have begun a session of their own stay.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, process_group=0)
        try:
            # The leader stays a zombie until wait(), so that no other process gets the number of its group.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return process.returncode, output.read().decode(errors='replace')


def noticing_test(mutant, plan, left_out, run):
    """The test that notices the mutant, or None; `run(arguments, mutant, exclude)` gives the names of failed tests.

    A test that fails is repeated, without the mutant and with it. A test that fails without the mutant is left out from now on
    (it is added to `left_out`); a test that passes with the mutant does not count for this mutant.
    """
    undecided = set()
    for arguments in plan:
        while failed := run(arguments, mutant, left_out | undecided):
            alone = ['--no-tests=error', '-R', f'^{re.escape(failed[0])}$']
            if run(alone, None, ()):
                print(f'mutate: left out from now on, it fails without a mutant: {failed[0]}', flush=True)
                left_out.add(failed[0])
            elif run(alone, mutant, ()):
                return failed[0]
            else:
                print(f'mutate: not counted for {mutant}, it failed once and then passed: {failed[0]}', flush=True)
                undecided.add(failed[0])
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('number', nargs='?', type=int, default=0, help='this many mutants, taken at random; 0: all')
    parser.add_argument('module', nargs='?', help='only mutants of this module')
    parser.add_argument('--list', type=pathlib.Path, default=pathlib.Path(os.environ.get('XFFL_MUTANTS', ROOT / 'tests/mutants/mutants.toml')),
                        help='another list of mutants (also: the environment variable XFFL_MUTANTS)')
    parser.add_argument('--only', help='only this mutant')
    parser.add_argument('--jobs', type=int, default=os.cpu_count())
    parser.add_argument('--unit', action='store_true', help='unit tests only, no whole federations or trainings')
    parser.add_argument('--check', action='store_true', help='only check that each mutant fits the sources')
    options = parser.parse_args()

    mutants = load(options.list)
    if problems := problems_of(mutants):
        print('\n'.join(problems))
        sys.exit(f'mutate: {len(problems)} mutants of {options.list} do not fit the sources')
    if options.check:
        return print(f'mutate: {len(mutants)} mutants fit the sources')
    chosen = [m for m in mutants if options.module in (None, m['module']) and options.only in (None, m['id'])]
    if options.number:
        chosen = random.sample(chosen, min(options.number, len(chosen)))
    if not chosen:
        sys.exit('mutate: no mutant is chosen')

    began = time.monotonic()
    write_copy(mutants)
    print(f'mutate: building with {len(mutants)} mutants', flush=True)
    if subprocess.run(['scripts/build.sh', 'dev'], cwd=COPY).returncode:
        sys.exit('mutate: the build failed: a mutant does not compile')
    print(f'mutate: built in {time.monotonic() - began:.0f} s; tests without a mutant', flush=True)

    plans = {m['module']: [s for s in stages(m['module']) if not (options.unit and ('e2e' in s or 'python' in s[1]))] for m in chosen}
    broken = set()
    for arguments in {json.dumps(s) for plan in plans.values() for s in plan}:
        broken |= set(run_tests(json.loads(arguments), options.jobs, stop=False))
    for name in sorted(broken):
        print(f'mutate: left out, it fails without a mutant: {name}')

    survivors = []
    for number, mutant in enumerate(chosen, 1):
        start = time.monotonic()
        noticed = noticing_test(mutant['id'], plans[mutant['module']], broken,
                                lambda arguments, id, exclude: run_tests(arguments, options.jobs, id, exclude))
        if noticed is None:
            survivors.append(mutant)
        verdict = f'noticed by {noticed}' if noticed else f"SURVIVED ({mutant['harm']}): {mutant['effect']}"
        print(f"[{number}/{len(chosen)}] {mutant['id']}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)

    severe = [m for m in survivors if m['harm'] == 'severe']
    print(f'mutate: {len(chosen) - len(survivors)} of {len(chosen)} mutants noticed in {time.monotonic() - began:.0f} s; '
          f'severe ones missed: {len(severe)}' + (f" ({', '.join(m['id'] for m in severe)})" if severe else ''))
    sys.exit(1 if severe or len(survivors) * 10 > len(chosen) else 0)


if __name__ == '__main__':
    main()
