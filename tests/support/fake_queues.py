#!/usr/bin/env python3
"""Stands in for PBS and Flux: qsub, qselect, qstat, qdel, pbs_tmrsh and flux, by the name that it is called with. Jobs are
processes of this machine, and so are their nodes: node1, node2, ...

The answers have the documented formats of OpenPBS (qstat -f -F json, qselect) and Flux (flux jobs --format). FAKE_QUEUES is
the folder of the jobs, one JSON file each. A file `history-off` there turns PBS's job history off; a file `lose-answer.pbs` or
`lose-answer.flux` lets one submission succeed whose answer is lost.
"""
import fcntl
import json
import os
import pathlib
import pwd
import re
import signal
import subprocess
import sys
import time

FOLDER = pathlib.Path(os.environ["FAKE_QUEUES"])
USER = pwd.getpwuid(os.getuid()).pw_name
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
FIRST_FLUX_ID = 11435875434496  # Flux's ids are times


def fail(message, code=1):
    print(message, file=sys.stderr)
    sys.exit(code)


def locked():
    lock = open(FOLDER / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def jobs():
    return [json.loads(p.read_text()) for p in sorted(FOLDER.glob("*.json"), key=lambda p: int(p.stem))]


def store(job):
    part = FOLDER / f"{job['number']}.part"
    part.write_text(json.dumps(job))
    part.rename(FOLDER / f"{job['number']}.json")


def start(job, script):
    """Begins a job: a process of its own waits for the script's end."""
    with locked():
        job.update(number=len(jobs()) + 1, state="running", began=time.time(), exit=None, deleted=False)
        (FOLDER / f"{job['number']}.sh").write_text(script)
        store(job)
    subprocess.Popen([sys.executable, __file__, "supervise", str(job["number"])], start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        (FOLDER / f"lose-answer.{job['manager']}").unlink()
    except FileNotFoundError:
        return job["number"]
    fail({"pbs": "qsub: End of File", "flux": "flux-batch: ERROR: Connection reset by peer"}[job["manager"]])


def supervise(number):
    path = FOLDER / f"{number}.json"
    with locked():
        job = json.loads(path.read_text())
        with open(job["output"], "ab") as output:
            child = subprocess.Popen(["bash", FOLDER / f"{number}.sh"], cwd=job["cwd"], start_new_session=True, stdout=output,
                                     stderr=subprocess.STDOUT, env={**os.environ, **environment(job)})
        job["pid"] = child.pid
        store(job)
        if job["deleted"]:
            os.killpg(child.pid, signal.SIGTERM)
    code = child.wait()
    with locked():
        job = json.loads(path.read_text())
        job.update(state="ended", exit=code)
        store(job)


def end(job):
    with locked():
        job = json.loads((FOLDER / f"{job['number']}.json").read_text())
        job["deleted"] = True
        store(job)
        if job["state"] == "running" and "pid" in job:
            os.killpg(job["pid"], signal.SIGTERM)


def environment(job):
    nodes = FOLDER / f"{job['number']}.nodes"
    nodes.write_text("".join(f"node{n + 1}\n" * job["tasks"] for n in range(job["nodes"])))
    if job["manager"] == "pbs":
        return {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": pbs_id(job), "PBS_NODEFILE": str(nodes)}
    return {"FAKE_FLUX_ID": f58(flux_id(job)), "FAKE_FLUX_NODES": str(job["nodes"])}


# PBS.


def pbs_id(job):
    return f"{job['number']}.fake"


def find_pbs(text):
    found = [job for job in jobs() if text in (pbs_id(job), str(job["number"]))]
    return found[0] if found else None


def qsub(words):
    options = {}
    if "-f" not in words:
        fail("qsub: without -f a process stays in the background and holds the connection open")
    words.remove("-f")
    for flag, value in zip(words[::2], words[1::2]):
        if not re.fullmatch("-[A-Za-z]", flag):
            fail(f"qsub: illegal option {flag}\nusage: qsub [-A account_string] ...", 2)
        options.setdefault(flag, []).append(value)
    if (queue := options.get("-q", ["workq"])[0]) not in ("workq", "off"):
        fail("qsub: Unknown queue", 170)
    if queue == "off":
        fail("qsub: Queue is not enabled", 172)
    for name in (resource.partition("=")[0] for resource in options["-l"]):
        if name in ("mem", "vmem", "ncpus", "ngpus", "mpiprocs"):
            fail(f'qsub: "-lresource=" cannot be used with "select" or "place", resource is: {name}', 5)
    output = pathlib.Path(options["-o"][0])
    nodes, tasks = re.match(r"select=(\d+):ncpus=\d+:mpiprocs=(\d+)", " ".join(options["-l"])).groups()
    job = {"manager": "pbs", "name": options["-N"][0], "cwd": str(output.parent), "output": str(output), "nodes": int(nodes),
           "tasks": int(tasks), "arguments": " ".join(words)}
    print(pbs_id({"number": start(job, sys.stdin.read())}))


def history(words):
    wanted = "-x" in words
    if wanted and (FOLDER / "history-off").exists():
        fail(f"{pathlib.Path(sys.argv[0]).name}: PBS is not configured to maintain job history", 0)  # as PBS: no error
    return wanted


def qselect(words):
    ended, name, user = history(words), words[words.index("-N") + 1], words[words.index("-u") + 1]
    for job in jobs():
        if job["name"] == name and user == USER and (ended or job["state"] != "ended"):
            print(pbs_id(job))


def ctime(seconds):
    return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(seconds))


def pbs_attributes(job):
    found = {"Job_Name": job["name"], "Job_Owner": f"{USER}@login", "job_state": {"running": "R", "ended": "F"}[job["state"]],
             "queue": "workq", "server": "fake", "Checkpoint": "u", "ctime": ctime(job["began"]), "Hold_Types": "n",
             "Join_Path": "oe", "Priority": 0, "Rerunable": "True",
             "Resource_List": {"ncpus": 1, "nodect": 1, "place": "scatter", "select": "1:ncpus=1:mpiprocs=1", "walltime": "01:00:00"},
             "stime": ctime(job["began"]), "substate": 42, "Variable_List": {"PBS_O_HOME": "/home/me", "PBS_O_QUEUE": "workq"},
             "comment": "Job run on (node1:ncpus=1)", "run_count": 1, "Submit_arguments": job["arguments"]}
    if job["state"] == "ended":
        found |= {"Exit_status": job["exit"] if job["exit"] >= 0 else 256 - job["exit"], "substate": 91 if job["deleted"] else 92}
    return found


def qstat(words):
    if words == ["--version"]:
        print("pbs_version = 2022.1.1")
        return
    ended, ids, found, problems = history(words), [w for w in words if w[0].isdigit()], {}, 0
    for text in ids:
        job = find_pbs(text)
        if job is None:
            problems = 153
            print(f"qstat: Unknown Job Id {text}", file=sys.stderr)
        elif job["state"] == "ended" and not ended:
            problems = 35
            print(f"qstat: {text} Job has finished, use -x or -H to obtain historical job information", file=sys.stderr)
        else:
            found[pbs_id(job)] = pbs_attributes(job)
    print(json.dumps({"timestamp": int(time.time()), "pbs_version": "2022.1.1", "pbs_server": "fake", "Jobs": found}, indent=4))
    sys.exit(problems)


def qdel(words):
    job = find_pbs(words[0])
    if job is None:
        fail(f"qdel: Unknown Job Id {words[0]}", 153)
    if job["state"] == "ended":
        fail(f"qdel: Job has finished {words[0]}", 35)
    end(job)


def pbs_tmrsh(words):
    if words[0] not in pathlib.Path(os.environ["PBS_NODEFILE"]).read_text().split():
        fail(f'pbs_tmrsh: host "{words[0]}" is not a node in job <{os.environ["PBS_JOBID"]}>', 255)
    os.execvp(words[1], words[1:])


# Flux.


def flux_id(job):
    return FIRST_FLUX_ID + job["number"]


def f58(number):
    text = ""
    while number:
        number, digit = divmod(number, 58)
        text = BASE58[digit] + text
    return "f" + text  # in the C locale


def flux_number(text):
    if not text.startswith("f"):
        return int(text)
    number = 0
    for letter in text[1:]:
        number = 58 * number + BASE58.index(letter)
    return number


def flux_fields(job):
    ended, code = job["state"] == "ended", job["exit"]
    result = "" if not ended else "CANCELED" if job["deleted"] else "FAILED" if code else "COMPLETED"
    return {"id.dec": flux_id(job), "state": "INACTIVE" if ended else "RUN", "result": result,
            "returncode": code if ended else "", "urgency": 16, "t_remaining": 0.0 if ended else 3590.5,
            "exception.type": "cancel" if job["deleted"] else "", "name": job["name"]}


def shown(value, hyphen):
    text = str(value)
    return "-" if hyphen and text in ("", "0.0") else text


def flux(words):
    command, *words = words
    if command == "--version":
        print("commands:    \t\t0.67.0\nlibflux-core:\t\t0.67.0")
        return
    if command == "exec" and words[-1] == "hostname":
        for rank in reversed(range(int(os.environ["FAKE_FLUX_NODES"]))):
            print(f"{rank}: node{rank + 1}")
        return
    if command == "exec":
        if not int(words[0].removeprefix("--rank=")) < int(os.environ["FAKE_FLUX_NODES"]):
            fail(f"flux-exec: {words[0]}: no such rank")
        os.execvp(words[1], words[1:])
    if (command, words) == ("getattr", ["jobid"]):
        print(os.environ["FAKE_FLUX_ID"])
        return
    options = dict(re.fullmatch("--([a-z-]+)=?(.*)", w).groups() for w in words if w.startswith("--"))
    plain = [w for w in words if not w.startswith("-")]
    if command == "batch":
        if options.get("queue", "batch") != "batch":
            fail(f"flux-batch: ERROR: [Errno 22] Invalid queue '{options['queue']}' specified")
        number = start({"manager": "flux", "name": options["job-name"], "cwd": options["cwd"], "output": options["output"],
                        "nodes": int(options["nodes"]), "tasks": 1}, sys.stdin.read())
        print(f58(flux_id({"number": number})))
    elif command == "job" and plain[0] == "id" and options == {"to": "dec"}:
        print(flux_number(plain[1]))
    elif command == "jobs":
        for job in jobs():
            if job["name"] == options["name"] and ("-a" in words or job["state"] != "ended"):
                fields = flux_fields(job)
                print(re.sub(r"\{([a-z_.]+)(:h)?\}", lambda m: shown(fields[m[1]], m[2]), options["format"]))
    elif command == "cancel":
        found = [job for job in jobs() if flux_id(job) == flux_number(plain[0])]
        if not found:
            fail(f"flux-cancel: {plain[0]}: unknown job id")
        if found[0]["state"] == "ended":
            fail(f"flux-cancel: {plain[0]}: job is inactive")
        end(found[0])
    else:
        fail(f"flux: unexpected command {command} {words}", 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["supervise"]:
        supervise(sys.argv[2])
    else:
        {"qsub": qsub, "qselect": qselect, "qstat": qstat, "qdel": qdel, "pbs_tmrsh": pbs_tmrsh, "flux": flux}[pathlib.Path(sys.argv[0]).name](sys.argv[1:])
