"""xffl's algorithm in one file: a federation of a toy model, without SSH, Slurm or PyTorch.

    reference_federation.py WORKDIR              runs the federation and prints its events
    reference_federation.py WORKDIR --kill-at 9  dies when event 9 is durable; run again, it resumes

Three facilities train a bigram language model, each on its own text, which never leaves it. The
coordinator may be killed at any moment: it remembers nothing but the events in its store.

Where to read: run_round() in section 8 is one round. Section 5 is the state machine of a facility
in a round; section 7 performs its actions. Sections 1 to 4 are arithmetic, the store and the plan;
6 simulates a facility. Names are the product's. Absent: SSH, LoRA, outages, on_missing, kept
allocations, pauses, purges, rejected or deferred submissions, checkpoints, walltime.

    run                  one federation: rounds in sequence until the last model is published
    round                all facilities train the same global model; their updates are averaged
    attempt              one try of a facility in a round: push, submit, poll, fetch
    intent, outcome      the events before and after an effect that must not be repeated blindly
    claim, fence         a job trains if it creates the claim folder; the fence creates it first
    settle time          how long a queue or a shared file system may show an old state
    deadline             seconds from the round's first submission; then facilities are given up
    quorum               the number of updates that a round needs
    participants frozen  the set of updates to be averaged is on record and no longer changes
    published            CURRENT names the round's global model; the next round begins with it
"""
import argparse, hashlib, json, os, pathlib, shutil, sys
from collections import namedtuple
import numpy as np

Policy = namedtuple("Policy", "quorum deadline max_attempts poll_interval settle_time")
Experiment = namedtuple("Experiment", "rounds policy facilities")
EXPERIMENT = Experiment(
    4, Policy(quorum=2, deadline=3600, max_attempts=2, poll_interval=30, settle_time=60),
    facilities={"alba": "il treno lascia la costa e sale verso le colline",
                "brno": "vlak jede podle reky do mesta kde se pece chleba",
                "cork": "the boat leaves the harbour before the rain comes"})

# === 1. Models: {name: float32 array}, and their files ============================================
def sha256_hex(data): return hashlib.sha256(data).hexdigest()
def to_bf16(x):
    """float32 -> the nearest value of bf16, ties to even, in a float32 array."""
    bits = x.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype("<u4").view("<f4")

def write_model(path, tensors):
    np.savez(path, **tensors)
    return sha256_hex(path.read_bytes())

def read_model(path):
    with np.load(path) as file: return dict(file)

# === 2. aggregate/: the server step, and the checks of updates ====================================
def server_step(master, updates, deltas=True):
    """FedAvg (McMahan et al., 2017): the new float32 master, rounded once, from float64. `updates`
    are [(facility, weight, tensors)]; sorted by name, the bits do not depend on who came first.
    Changes too small for the published model, which is in bf16, add up in the master."""
    updates, new = sorted(updates, key=lambda update: update[0]), {}
    for name, x in master.items():
        weighted_sum, total = 0.0, 0.0
        for k, (_, weight, tensors) in enumerate(updates):
            term = np.float64(weight) * tensors[name].astype(np.float64)
            weighted_sum = weighted_sum + term if k else term
            total += float(weight)
        mean = weighted_sum / total
        new[name] = (x.astype(np.float64) + mean if deltas else mean).astype(np.float32)
    return new

def check_update(path, report, job):
    """ValueError unless the file is the update that the report names, and answers the job."""
    if report["nonce"] != job["nonce"]: raise ValueError("the report is of another attempt")
    if sha256_hex(path.read_bytes()) != report["update_sha256"]: raise ValueError("it is damaged")
    tensors = read_model(path).values()
    if not all(np.isfinite(x).all() for x in tensors): raise ValueError("NaN or infinity")
    if not any(x.any() for x in tensors): raise ValueError("every element is zero")

# === 3. history/: the store of events, and the state that they project to =========================
class Store:
    """events.jsonl, one event a line. append() returns when the event is durable."""
    def __init__(self, path, kill_at):
        content = path.read_bytes() if path.exists() else b""
        whole = content[:content.rfind(b"\n") + 1]  # an event whose line is torn did not happen
        self.events, self.kill_at = [json.loads(line) for line in whole.splitlines()], kill_at
        self.file = open(path, "ab", buffering=0)
        self.file.truncate(len(whole))
    def append(self, event):
        self.file.write(json.dumps(event).encode() + b"\n")
        os.fsync(self.file.fileno())
        if event["seq"] == self.kill_at: sys.exit(f"killed at event {event['seq']}")
        self.events.append(event)

class FacilityState:
    """One facility in one round. An attempt is a dictionary {kind of event: payload}."""
    def __init__(self): self.attempts, self.missing = [], ""  # missing: the reason
    def apply(self, kind, payload):
        if kind == "facility_missing": self.missing = payload["reason"]
        elif kind == "attempt_opened": self.attempts.append({kind: payload})
        else: self.attempts[-1][kind] = payload
    def current(self): return self.attempts[-1] if self.attempts else {}
    def attempt_is_open(self): return self.attempts and "attempt_failed" not in self.current()
    def accepted(self): return self.current().get("update_accepted")

class RunHistory:
    """`run` and rounds[number] are dictionaries {kind of event: payload}; a round also has its
    "facilities" {name: FacilityState} and the time of its "first_submission"."""
    def __init__(self, store, log):
        self.store, self.log, self.now, self.run, self.rounds = store, log, 0, {}, {}
        for event in store.events: self.apply(**event)
    def record(self, kind, round=0, facility="", attempt=0, **payload):
        event = {"seq": len(self.store.events) + 1, "time": self.now, "kind": kind, "round": round,
                 "facility": facility, "attempt": attempt, "payload": payload}
        self.store.append(event)
        self.log(event)
        self.apply(**event)
    def apply(self, seq, time, kind, round, facility, attempt, payload):
        self.now, state = time, self.rounds.setdefault(round, {}) if round else self.run
        if facility: state["facilities"][facility].apply(kind, payload)
        else: state[kind] = payload
        if kind == "round_planned":
            state["facilities"] = {name: FacilityState() for name in payload["facilities"]}
        if kind == "submitted": state.setdefault("first_submission", time)

# === 4. plan/: pure functions of the experiment and the history ===================================
RoundPlan = namedtuple("RoundPlan", "round base_sha256 facilities")

def next_round(experiment, history):
    done = [state["published"] for state in history.rounds.values() if "published" in state]
    if len(done) == experiment.rounds: return None
    newest = done[-1] if done else history.run["model_imported"]
    return RoundPlan(len(done) + 1, newest["model_sha256"], sorted(experiment.facilities))

def job_spec(history, plan, name, attempt):
    """job.json. The nonce follows from the run's secret: a resumed coordinator knows it again."""
    text = f"{history.run['run_created']['secret']}/{plan.round}/{name}/{attempt}"
    return {"round": plan.round, "nonce": sha256_hex(text.encode())[:32],
            "base_model_sha256": plan.base_sha256}

# === 5. facility/machine: one facility's part of a round as a pure state machine ==================
def kinds(names): return [namedtuple(*name.split(":")) for name in names.split()]

# Phases. A phase may be lost at any moment: on_idle() finds it again in the history.
Idle, Pushing, Submitting, Searching, Polling, Ended, Fetching, Closing, Finished = kinds(
    "Idle: Pushing: Submitting: Searching:empty_searches Polling:job Ended:job,grace_over "
    "Fetching: Closing:reason,fatal,steps Finished:")
# Actions, and the events that are their outcomes. The event Resumed comes first.
Push, Submit, FindJobs, Poll, FetchUpdate, CancelJob, Fence, Sleep, Finish = kinds(
    "Push: Submit: FindJobs: Poll:job FetchUpdate: CancelJob:job Fence: Sleep:duration Finish:")
Resumed, Pushed, Submitted, SubmitUnknown, Found, Polled = kinds(
    "Resumed: Pushed: Submitted:job SubmitUnknown: Found:jobs Polled:reported,alive")
Fetched, UpdateRejected, Completed, TimerFired = kinds(
    "Fetched:update UpdateRejected:reason Completed: TimerFired:")
FacilityMachine = namedtuple("FacilityMachine", "known phase watched")  # watched: jobs so far

def step(policy, machine, event, since_first_submission):
    """-> (machine, records, action). The driver makes the records durable, then performs the
    action; its outcome is the next event. Handlers return (records, phase, pause)."""
    known, phase, watched = machine
    change = [], phase, 0
    if type(event) is not TimerFired or type(phase) is Idle:  # elsewhere it only ends a pause
        change = HANDLERS[type(phase)](policy, machine, event)
    if since_first_submission > policy.deadline: change = end_for_time(known, event, change)
    records, phase, pause = change
    if type(phase) is Polling: watched = watched | {phase.job}
    action = Sleep(pause) if pause else action_in(phase)
    return FacilityMachine(known, phase, watched), records, action

def action_in(phase):
    match phase:
        case Idle(): return Sleep(0)
        case Pushing(): return Push()
        case Submitting(): return Submit()
        case Searching() | Ended(_, True): return FindJobs()
        case Polling(job) | Ended(job, False): return Poll(job)
        case Fetching(): return FetchUpdate()
        case Closing(_, _, steps): return steps[0]
        case Finished(): return Finish()

def on_idle(policy, machine, event):
    known, attempt = machine.known, machine.known.current()
    if known.accepted() or known.missing: return [], Finished(), 0
    if not known.attempt_is_open():
        if len(known.attempts) < policy.max_attempts: return [("attempt_opened", {})], Pushing(), 0
        return [("facility_missing", attempt["attempt_failed"])], Finished(), 0
    if "submitted" in attempt: return [], Polling(attempt["submitted"]["job_id"]), 0
    if "submit_intended" in attempt:  # an intent without an outcome: a job may exist
        return [], Searching(0), policy.settle_time
    return [], Pushing(), 0  # a push may be repeated: it needs no intent

def on_pushing(policy, machine, event):  # Pushed
    return [("pushed", {}), ("submit_intended", {})], Submitting(), 0

def on_submitting(policy, machine, event):
    match event:
        case Submitted(job): return [("submitted", {"job_id": job})], Polling(job), 0
        case SubmitUnknown(): return [], Searching(0), policy.settle_time  # never submit blindly

def on_searching(policy, machine, event):
    match event, machine.phase.empty_searches:
        case Found([job, *_]), _:  # duplicates of this job find the claim taken
            return [("submitted", {"job_id": job})], Polling(job), 0
        case Found(), 0: return [], Searching(1), policy.settle_time  # a queue may show a job late
        case Found(), 1: return [], Submitting(), 0

def on_polling(policy, machine, event):
    match event:
        case Polled(reported=True): return [], Fetching(), 0  # a report alone is success
        case Polled(alive=True): return [], machine.phase, policy.poll_interval
        case Polled(): return [], Ended(machine.phase.job, False), policy.settle_time

def on_ended(policy, machine, event):  # a shared file system may show the report late
    match event:
        case Polled(reported=True): return [], Fetching(), 0
        case Polled(alive=True): return [], Polling(machine.phase.job), 0  # requeued
        case Polled(): return [], Ended(machine.phase.job, True), 0
        case Found(jobs):
            for job in sorted(set(jobs) - machine.watched):  # a duplicate may hold the claim
                return [("submitted", {"job_id": job})], Polling(job), 0
            return [], Closing("it left no report", False, [Fence(), Poll(machine.phase.job)]), 0

def on_fetching(policy, machine, event):
    match event:
        case Fetched(update): return [("update_accepted", update)], Finished(), 0
        case UpdateRejected(reason):  # the same job on the same data would answer the same
            return [], Closing("its update was rejected: " + reason, True, [Fence()]), 0

def on_closing(policy, machine, event):  # fenced, its jobs cancelled; then the failure is recorded
    reason, fatal, (_, *left) = machine.phase
    match event:
        case Polled(reported=True): return [], Fetching(), 0
        case Found(jobs): left = [CancelJob(job) for job in jobs]
    if left: return [], Closing(reason, fatal, left), 0
    records = [("attempt_failed", {"reason": reason})]
    if not fatal: return records, Idle(), 0
    return records + [("facility_missing", {"reason": reason})], Finished(), 0

HANDLERS = {Idle: on_idle, Pushing: on_pushing, Submitting: on_submitting, Searching: on_searching,
            Polling: on_polling, Ended: on_ended, Fetching: on_fetching, Closing: on_closing}

def end_for_time(known, event, change):
    """A poll that is due comes first; a seen report is fetched; a failed attempt is closed."""
    records, phase, _ = change
    if type(phase) in (Idle, Fetching, Closing, Finished): return change
    if type(phase) in (Polling, Ended) and type(event) in (Resumed, TimerFired): return change
    reason = "no update before the round's deadline"
    if not known.attempt_is_open(): return [("facility_missing", {"reason": reason})], Finished(), 0
    return records, Closing(reason, True, [Fence(), FindJobs()]), 0

# === 6. A simulated facility: folders, a queue and the jobs. They survive the coordinator =========
class SimulatedFacility:
    def __init__(self, folder, text, seed):
        self.folder, self.name, self.text, self.seed = folder, folder.name, text, seed
        self.queue = folder / "queue"
        self.now, self.jobs = json.loads(self.queue.read_text()) if self.queue.exists() else (0, [])
    def save(self): self.queue.write_text(json.dumps([self.now, self.jobs]))
    def chance(self, *key):  # 0 to 1, the same for the same key
        return int(sha256_hex(repr((self.seed, self.name, key)).encode())[:8], 16) / 2**32
    def sbatch(self, name, folder, round):
        luck, never = self.chance("sbatch", name, self.now), self.chance("stuck", round) < 0.06
        if luck < 0.2: raise TimeoutError("the connection is lost, and no job exists")
        self.jobs.append({"id": len(self.jobs) + 1, "name": name, "folder": str(folder),
                          "state": "PENDING", "start": self.now + (1e9 if never else 200),
                          "shown": self.now + (300 if luck < 0.3 else 0),
                          "report": self.now + 500 + 50 * luck})
        self.save()
        if luck < 0.4: raise TimeoutError("the connection is lost, and the job exists")
        return len(self.jobs)
    def advance(self, seconds):
        self.now += seconds
        for job in self.jobs:
            folder = pathlib.Path(job["folder"])
            if job["state"] == "PENDING" and job["start"] <= self.now:
                try: (folder / "claim").mkdir()  # a job's first act: its creator alone trains
                except FileExistsError: job["state"] = "DUPLICATE"
                else: job["state"] = "RUNNING"
            if job["state"] == "RUNNING" and job["start"] + 300 <= self.now:
                job["state"] = "NODE_FAIL" if self.chance("node", job["name"]) < 0.2 else "DONE"
                if job["state"] == "DONE": self.train(folder)
        self.save()
    def train(self, folder):
        """Moves the model halfway to the bigrams of the facility's text."""
        job, model = json.loads((folder / "job.json").read_text()), read_model(folder / "model.npz")
        tokens = np.array([ord(letter) & 31 for letter in self.text])
        counts = np.full((32, 32), 0.1)
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
        delta = np.log(counts / counts.sum(axis=1, keepdims=True)) / 2 - model["bigram.weight"] / 2
        if self.chance("useless", job["round"]) < 0.06: delta *= 0
        sha256 = write_model(folder / "out/update.npz", {"bigram.weight": to_bf16(delta)})
        report = job | {"update_sha256": sha256, "tokens": len(tokens)}
        (folder / "out/report.json").write_text(json.dumps(report))  # last of all

# === 7. facility/driver: performs the machine's actions ===========================================
Context = namedtuple("Context", "experiment folder history facilities")  # of a run
def model_path(context, round, name): return context.folder / f"r{round:04}/{name}.npz"

class FacilityDriver:
    def __init__(self, context, plan, facility):
        self.context, self.plan, self.facility = context, plan, facility
        self.round = context.history.rounds[plan.round]
        self.known = self.round["facilities"][facility.name]
    def run(self):
        """The product's thread, as a generator that yields while the facility sleeps."""
        policy, history = self.context.experiment.policy, self.context.history
        machine, event = FacilityMachine(self.known, Idle(), frozenset()), Resumed()
        while True:
            since = history.now - self.round.get("first_submission", history.now)
            machine, records, action = step(policy, machine, event, since)
            for kind, payload in records:
                attempt = len(self.known.attempts) + (kind == "attempt_opened")
                history.record(kind, self.plan.round, self.facility.name, attempt, **payload)
            if type(action) is Finish: return
            wake = history.now + (action.duration if type(action) is Sleep else 0)
            while history.now < wake: yield
            event = self.perform(action)
    def perform(self, action):
        facility, round, attempt = self.facility, self.plan.round, len(self.known.attempts)
        spec = job_spec(self.context.history, self.plan, facility.name, attempt)
        name = f"{facility.name}-r{round}-a{attempt}"  # of the attempt's jobs
        folder = facility.folder / f"r{round:04}/a{attempt}"
        match action:
            case Sleep(): return TimerFired()
            case Push():
                (folder / "out").mkdir(parents=True, exist_ok=True)
                shutil.copy(model_path(self.context, round - 1, "global"), folder / "model.npz")
                (folder / "job.json").write_text(json.dumps(spec))
                return Pushed()
            case Submit():
                try: return Submitted(facility.sbatch(name, folder, round))
                except TimeoutError: return SubmitUnknown()
            case FindJobs():
                return Found([job["id"] for job in facility.jobs
                              if job["name"] == name and job["shown"] <= facility.now])
            case Poll(number):
                job = facility.jobs[number - 1]
                reported = (folder / "out/report.json").exists() and job["report"] <= facility.now
                return Polled(reported, job["state"] in ("PENDING", "RUNNING"))
            case FetchUpdate():
                report = json.loads((folder / "out/report.json").read_text())
                update = model_path(self.context, round, facility.name)
                shutil.copy(folder / "out/update.npz", update)
                try: check_update(update, report, spec)
                except ValueError as error: return UpdateRejected(str(error))
                return Fetched({"update_sha256": report["update_sha256"], "report": report})
            case Fence(): (folder / "claim").mkdir(parents=True, exist_ok=True)
            case CancelJob(number):
                facility.jobs[number - 1]["state"] = "CANCELLED"
                facility.save()
        return Completed()

# === 8. run/: the federation ======================================================================
def run_round(context, plan):
    history, round = context.history, plan.round
    if round not in history.rounds: history.record("round_planned", **plan._asdict())
    state = history.rounds[round]
    if "participants_frozen" not in state:
        train_everywhere(context, plan)
        accepted = {name: known.accepted() for name, known in state["facilities"].items()}
        weights = {name: each["report"]["tokens"] for name, each in accepted.items() if each}
        if len(weights) < context.experiment.policy.quorum: sys.exit(f"only {len(weights)} updates")
        history.record("participants_frozen", round, weights=weights)  # late updates do not count
    if "aggregated" not in state:
        updates = [(name, weight, read_model(model_path(context, round, name)))
                   for name, weight in state["participants_frozen"]["weights"].items()]
        master = server_step(read_model(model_path(context, round - 1, "master")), updates)
        write_model(model_path(context, round, "master"), master)
        model = {name: to_bf16(x) for name, x in master.items()}
        model_sha256 = write_model(model_path(context, round, "global"), model)
        history.record("aggregated", round, model_sha256=model_sha256)
    (context.folder / "CURRENT.tmp").write_text(f"r{round:04}/global.npz")
    os.rename(context.folder / "CURRENT.tmp", context.folder / "CURRENT")
    history.record("published", round, **state["aggregated"])

def train_everywhere(context, plan):
    threads = [FacilityDriver(context, plan, facility).run() for facility in context.facilities]
    while threads:
        context.history.now = context.facilities[0].now  # a clock that survives the coordinator
        threads = [thread for thread in threads if next(thread, "finished") != "finished"]
        for facility in context.facilities: facility.advance(seconds=10)

def run_federation(workdir, seed=1, kill_at=None, log=lambda event: None):
    """Runs the federation, or resumes it. Returns the hash of the final model."""
    folder = workdir / "runs/0001"
    for round in range(EXPERIMENT.rounds + 1): os.makedirs(folder / f"r{round:04}", exist_ok=True)
    history = RunHistory(Store(folder / "events.jsonl", kill_at), log)
    facilities = [SimulatedFacility(workdir / "work" / name, text, seed)
                  for name, text in EXPERIMENT.facilities.items()]
    context = Context(EXPERIMENT, folder, history, facilities)
    if "run_created" not in history.run: history.record("run_created", secret=f"{seed:032x}")
    if "model_imported" not in history.run:
        zero = {"bigram.weight": np.zeros((32, 32), np.float32)}
        for name in ("master", "global"): sha256 = write_model(model_path(context, 0, name), zero)
        history.record("model_imported", model_sha256=sha256)
    while plan := next_round(EXPERIMENT, history): run_round(context, plan)
    return sha256_hex((folder / (folder / "CURRENT").read_text()).read_bytes())

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1, help="of the facilities' faults")
    parser.add_argument("--kill-at", type=int, help="die when the event of this number is durable")
    line = "{seq:4} {time:5} s  r{round} {facility:4} a{attempt} {kind:19} {payload!s:.80}"
    print("final model:", run_federation(**vars(parser.parse_args()),
                                         log=lambda event: print(line.format(**event))))
