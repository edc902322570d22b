"""The last line and the exit code of scripts/campaign.sh and scripts/hostile.sh are true: with made-up logs, and with made-up test programs
that pass, fail, are skipped, match no test, or do not end.
"""
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / 'scripts'
PASSED = '[==========] 3 tests ran.\n[  PASSED  ] 3 tests.\n'
NOTHING = 'Note: Google Test filter = Renamed.*\n[==========] 0 tests ran.\n[  PASSED  ] 0 tests.\n'
SKIPPED = '/src/x_test.cc:12: Skipped\nno sshd here\n[  SKIPPED ] A.B (0 ms)\n[  PASSED  ] 0 tests.\n[  SKIPPED ] 1 test, listed below:\n'
SOME_SKIPPED = SKIPPED.replace('0 tests', '2 tests')
FAILED = 'x_test.cc:12: Failure\n[  PASSED  ] 2 tests.\n[  FAILED  ] 1 test, listed below:\n'


def check(condition, message):
    if not condition:
        sys.exit(message)


def verdict_of(folder, parts):
    """The exit code and the lines of the verdict about {part: (log, code)}."""
    logs = pathlib.Path(tempfile.mkdtemp(dir=folder))
    for part, (log, code) in parts.items():
        if log is not None:
            (logs / f'{part}.log').write_text(log)
        if code is not None:
            (logs / f'{part}.code').write_text(f'{code}\n')
    done = subprocess.run([SCRIPTS / 'campaign_verdict.sh', 'campaign', logs, '7', *parts], capture_output=True, text=True)
    check(done.stderr == '', done.stderr)
    return done.returncode, done.stdout.splitlines()


def made_up_logs(folder):
    good = {'good': (PASSED, 0), 'also': (PASSED, 0)}
    cases = [
        (good, 0, 'campaign: all 2 parts passed in 7 s'),
        ({}, 1, 'campaign: FAILED: there is no part'),
        ({'bad': (FAILED, 1), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: bad (exit code 1)'),
        ({'bad': (FAILED, 0), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: bad (a test failed)'),
        ({'renamed': (NOTHING, 0), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: renamed (no test ran)'),
        ({'empty': ('', 0), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: empty (no test ran)'),
        ({'slow': (PASSED, 124), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: slow (time limit)'),
        ({'crash': ('', 139), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: crash (exit code 139)'),
        ({'lost': (PASSED, None), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: lost (it did not run, or did not end)'),
        ({'lost': (None, 0), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: lost (no test ran)'),
        ({'idle': (SKIPPED, 0), **good}, 77, 'campaign: SKIPPED after 7 s: 1 of 3 parts: idle; the other 2 passed'),
        ({'idle': (SOME_SKIPPED, 0), **good}, 77, 'campaign: SKIPPED after 7 s: 1 of 3 parts: idle; the other 2 passed'),
        # A skipped part never hides a failure.
        ({'idle': (SKIPPED, 0), 'bad': (FAILED, 1), 'none': (NOTHING, 0)}, 1,
         'campaign: FAILED after 7 s: 2 of 3 parts: bad (exit code 1), none (no test ran)'),
        ({'idle': (SKIPPED, 1), **good}, 1, 'campaign: FAILED after 7 s: 1 of 3 parts: idle (exit code 1)'),
    ]
    for parts, code, last in cases:
        seen = verdict_of(folder, parts)
        check(seen[0] == code and seen[1][-1] == last, f'expected {code}, {last}; seen {seen}')
    check('campaign: skipped: idle' in verdict_of(folder, cases[-2][0])[1], 'a failed campaign names its skipped parts')
    check('no sshd here' in verdict_of(folder, cases[-3][0])[1], 'a skipped part gives its reason')


def project(folder, programs):
    """A copy of the scripts with made-up test programs {name: shell text}; a program sees its filter in $1."""
    root = pathlib.Path(tempfile.mkdtemp(dir=folder))
    (root / 'scripts').mkdir()
    for name in ('campaign.sh', 'hostile.sh', 'campaign_verdict.sh'):
        shutil.copy2(SCRIPTS / name, root / 'scripts')
    written = {'scripts/bootstrap.sh': 'exit 0', 'scripts/build.sh': 'exit 0'}
    for name in ('e2e_testbed_test', 'e2e_test', 'e2e_damage_test', 'e2e_scale_test', 'hostile_test', 'remote_test', 'run_test'):
        written[f'build/dev/bin/{name}'] = programs.get(name, f"printf 'case A\\n{PASSED}'".replace('\n', '\\n'))
    for name, text in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/usr/bin/env bash\n{text}\n')
        path.chmod(0o755)
    return root


def run(root, script, *arguments):
    done = subprocess.run([root / 'scripts' / script, *arguments], capture_output=True, text=True, timeout=120)
    check(done.stdout, done.stderr)
    return done.returncode, done.stdout.splitlines()[-1]


def whole_scripts(folder):
    campaign = ('campaign.sh', '2', 'dev', '100')
    fails_frozen = f'case $1 in *Frozen*) printf {FAILED!r}; exit 1 ;; *) printf {PASSED!r} ;; esac'
    no_sshd = f'printf {SKIPPED!r}'
    all_parts = run(project(folder, {}), *campaign)
    check(all_parts[0] == 0 and all_parts[1].startswith('campaign: all 35 parts passed in '), all_parts)
    failed = run(project(folder, {'e2e_test': fails_frozen, 'e2e_testbed_test': no_sshd}), *campaign)
    check(failed[0] == 1 and ': 3 of 35 parts: frozen-at-records (exit code 1), ' in failed[1], failed)
    skipped = run(project(folder, {'hostile_test': no_sshd}), *campaign)
    check(skipped[0] == 77 and '4 of 35 parts: hostile-0, ' in skipped[1], skipped)
    renamed = run(project(folder, {'e2e_scale_test': f'printf {NOTHING!r}'}), *campaign)
    check(renamed[0] == 1 and '2 of 35 parts: scale-wide (no test ran), scale-long (no test ran)' in renamed[1], renamed)

    passed = run(project(folder, {}), 'hostile.sh', '3', 'dev', '6')
    check(passed[0] == 0 and passed[1].startswith('hostile: all 3 parts passed in '), passed)
    first_fails = f'[ $GTEST_SHARD_INDEX != 0 ] && exec printf {SKIPPED!r}; printf {FAILED!r}; exit 1'
    failed = run(project(folder, {'hostile_test': first_fails}), 'hostile.sh', '9', 'dev', '3')
    check(failed[0] == 1 and failed[1].endswith(': 1 of 3 parts: 0 (exit code 1)'), failed)
    skipped = run(project(folder, {'hostile_test': no_sshd}), 'hostile.sh')
    check(skipped[0] == 77 and '6 of 6 parts: 0, 1, 2, 3, 4, 5; the other 0 passed' in skipped[1], skipped)


def interruption(folder, script, *arguments):
    """A signal ends the script and its tests; the exit code is 130, and the last line is no verdict."""
    hangs = 'echo $$ >>"${0%/*}/pids"; exec sleep 1000'
    for number in (signal.SIGINT, signal.SIGTERM):
        root = project(folder, {name: hangs for name in ('e2e_testbed_test', 'e2e_test', 'e2e_scale_test', 'hostile_test')})
        # An own process group: the signal reaches the script alone. A parent may have ignored SIGINT.
        script_run = subprocess.Popen([root / 'scripts' / script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                      text=True, start_new_session=True,
                                      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        pids = root / 'build/dev/bin/pids'
        until = time.monotonic() + 120
        # `timeout` passes a signal on only when it has noted its child after the fork: then it sleeps.
        while not pids.exists() or len(pids.read_text().split()) < 3 or not are_watched(pids.read_text().split()):
            check(time.monotonic() < until, f'{script} starts no three tests')
            time.sleep(0.05)
        script_run.send_signal(number)
        output = script_run.communicate(timeout=120)[0]
        last = output.splitlines()[-1] if output else ''
        check(script_run.returncode == 130, f'{script}: exit code {script_run.returncode}: {output}')
        check('INTERRUPTED' in last and last.endswith(f"repeat it with: scripts/{script} {' '.join(arguments)}"), last)
        for pid in pids.read_text().split():
            check(not is_running(int(pid)), f'{script}: its test {pid} goes on after signal {number}')


def stat_of(pid):
    """The state and the parent of a process."""
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return 'X', 0


def is_running(pid):
    return stat_of(pid)[0] not in 'ZX'


def are_watched(pids):
    return all(stat_of(stat_of(pid)[1])[0] == 'S' for pid in pids)


with tempfile.TemporaryDirectory() as temporary:
    made_up_logs(temporary)
    whole_scripts(temporary)
    interruption(temporary, 'campaign.sh', '2', 'dev', '3')
    interruption(temporary, 'hostile.sh', '9', 'dev', '3')
