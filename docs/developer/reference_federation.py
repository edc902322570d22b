"""xffl's algorithm in one file: a whole federation of a toy model, without SSH, Slurm or PyTorch.

    reference_federation.py WORKDIR              runs the federation and prints its events
    reference_federation.py WORKDIR --kill-at 9  dies when event 9 is durable; started again, it resumes

Three facilities train a bigram language model, each on its own text, which never leaves it. In each
round the coordinator (1) plans a RoundPlan; (2) at all facilities side by side pushes the model,
submits a job, polls for its report, fetches and verifies the update; (3) freezes the participants,
aggregates their updates and publishes the next global model. The simulated facilities lose replies
to `sbatch`, fail jobs and let jobs wait for ever (seeded: --seed).

The coordinator may be killed at any moment. Its memory is a store of events: an *intent* is durable
before an effect that must not be repeated blindly, the *outcome* after it. An intent without an
outcome makes the resumed coordinator look at the facility before it acts.

Sections 2 to 5, 7 and 8 have the names of the product's modules; server_step() computes the very
bytes of the product. Absent here: SSH, outages, packing, LoRA, kept allocations, retention, pause.
"""
import argparse, hashlib, json, os, pathlib, shutil, struct, sys
from collections import namedtuple
from dataclasses import dataclass, field
import numpy as np

Policy = namedtuple("Policy", "quorum on_missing deadline max_attempts poll_interval settle_time")
Experiment = namedtuple("Experiment", "project rounds policy facilities")
EXPERIMENT = Experiment(
    project="bigram", rounds=4,  # on_missing: skip (the quorum is enough), wait (no deadline), fail
    policy=Policy(2, "skip", deadline=3600, max_attempts=2, poll_interval=30, settle_time=60),
    facilities={
        "alba": {"text": "il treno lascia la costa e sale verso le colline", "batch_size": 16},
        "brno": {"text": "vlak jede podle reky do mesta kde se pece chleba", "batch_size": 24},
        "cork": {"text": "the boat leaves the harbour before the rain comes", "batch_size": 8}})

# === 1. Model folders: safetensors files and a root hash (docs/reference/formats.md) ==============
def to_bytes(x, dtype):
    """float32 -> F32, F16 or BF16, rounded to nearest with ties to even."""
    bits = x.astype("<f4").view("<u4")
    if dtype == "BF16": return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return x.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
def from_bytes(raw, dtype):
    if dtype == "BF16": return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4")

def write_model(folder, tensors, dtype):
    """The folder is whole or absent: it appears by rename. Returns its root hash."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in sorted(tensors.items()):
        raw = to_bytes(x, dtype)
        if not np.isfinite(from_bytes(raw, dtype)).all(): raise ValueError(f"{name} is not finite")
        header[name] = {"dtype": dtype, "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = folder.with_name(folder.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    (part / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    shutil.rmtree(folder, ignore_errors=True)  # a killed coordinator's: no event vouches for it
    part.rename(folder)
    return root_sha256(folder)

def read_model(folder):
    """{name: float32 array} of all safetensors files of a folder."""
    tensors = {}
    for content in [path.read_bytes() for path in sorted(folder.glob("*.safetensors"))]:
        data = content[8 + struct.unpack("<Q", content[:8])[0]:]
        for name, spec in json.loads(content[8:len(content) - len(data)]).items():
            if name == "__metadata__": continue
            first, last = spec["data_offsets"]
            tensors[name] = from_bytes(data[first:last], spec["dtype"]).reshape(spec["shape"])
    return tensors

def root_sha256(folder):
    """The name of a folder's content. (The product's folders hold config.json and others, too.)"""
    files = [(path.read_bytes(), path.name) for path in sorted(folder.glob("*.safetensors"))]
    lines = [f"{hashlib.sha256(raw).hexdigest()}  {len(raw)}  {name}\n" for raw, name in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()

# === 2. aggregate/: the weighted mean and the server step (docs/reference/aggregation.md) =========
def weighted_mean(updates, name):
    """sum(weight * x) / sum(weight) in float64. The order is that of the facilities' names, so the
    bits do not depend on who answered first. `updates`: [(facility, weight, tensors)]."""
    weighted_sum, total = None, 0.0
    for _, weight, tensors in sorted(updates, key=lambda update: update[0]):
        term = np.float64(weight) * tensors[name].astype(np.float64)
        weighted_sum = term if weighted_sum is None else weighted_sum + term
        total += float(weight)
    return weighted_sum / total

def server_step(master, updates, deltas=True):
    """FedAvg (McMahan et al., 2017): the new float32 master. The one rounding is from float64. The
    published model is this master in bf16; changes below bf16's precision add up in the master."""
    means = {name: weighted_mean(updates, name) for name in master}
    return {name: (x.astype(np.float64) + means[name] if deltas else means[name]).astype(np.float32)
            for name, x in master.items()}

def verify_update(folder, report, job, base):
    """ValueError unless the folder is the update that the report names, and answers the job."""
    for key in ("key", "base_model_sha256"):  # the key holds the nonce: an old report cannot pass
        if report[key] != job[key]: raise ValueError(f"the report answers another job ({key})")
    if root_sha256(folder) != report["update_sha256"]: raise ValueError("it is damaged")
    tensors = read_model(folder)
    if {n: x.shape for n, x in tensors.items()} != {n: x.shape for n, x in base.items()}:
        raise ValueError("tensors or shapes differ from the model's")
    if not all(np.isfinite(x).all() for x in tensors.values()): raise ValueError("NaN or infinity")
    if not any(x.any() for x in tensors.values()): raise ValueError("every element is zero")

# === 3. history/: the store of events, and RunHistory, the state that they project to =============
class Store:
    """events.jsonl: one event a line. append() returns when the event is durable."""
    def __init__(self, path, kill_at=None, torn=False):
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith(b"\n"): lines.pop()  # torn: the event did not happen
        self.events, self.kill_at, self.torn = [json.loads(line) for line in lines], kill_at, torn
        self.file = open(path, "ab", buffering=0)
        self.file.truncate(sum(map(len, lines)))
    def append(self, event):
        line, dies = json.dumps(event).encode() + b"\n", event["seq"] == self.kill_at
        self.file.write(line[:len(line) // 2] if dies and self.torn else line)
        os.fsync(self.file.fileno())
        if dies: sys.exit(f"killed at event {event['seq']} ({event['kind']})")
        self.events.append(event)

@dataclass
class FacilityState:  # in one round
    attempts: list = field(default_factory=list)  # of each: {kind of event: payload}
    missing: str = ""; attempts_before_resume: int = 0  # missing: why the facility is given up
    def accepted(self): return self.attempts[-1].get("update_accepted") if self.attempts else None

class RunHistory:
    """run: {kind of event: payload}; rounds: {number: the same, and "state": {facility: state}}."""
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
        self.now, record = time, self.rounds.setdefault(round, {}) if round else self.run
        if kind == "round_planned":
            record["state"] = {name: FacilityState() for name in payload["facilities"]}
        if kind == "run_resumed": self.resume()
        if not facility: record[kind] = payload
        elif kind == "facility_missing": record["state"][facility].missing = payload["reason"]
        elif kind == "attempt_opened": record["state"][facility].attempts.append({kind: payload})
        else: record["state"][facility].attempts[-1][kind] = payload
        if kind == "submitted": record.setdefault("first_submission", time)
    def resume(self):
        """A facility given up in a round without participants is tried again, the deadline anew."""
        for record in [r for r in self.rounds.values() if "participants_frozen" not in r]:
            for state in record["state"].values():
                if state.missing: record["first_submission"] = self.now
                state.missing = ""
                state.attempts_before_resume = sum("attempt_failed" in a for a in state.attempts)

# === 4. plan/: pure functions of the experiment and the history ===================================
RoundPlan = namedtuple("RoundPlan", "round base_sha256 facilities quorum")
def next_round(experiment, history):
    done = [r["published"] for r in history.rounds.values() if "published" in r]
    if len(done) == experiment.rounds: return None
    names, policy = sorted(experiment.facilities), experiment.policy
    newest = (done or [history.run["model_imported"]])[-1]["model_sha256"]
    quorum = policy.quorum if policy.on_missing == "skip" else len(names)
    return RoundPlan(len(done) + 1, newest, names, quorum)

def make_job(experiment, history, plan, name, attempt):
    """job.json. A resumed coordinator knows the nonce again: it follows from the run's secret."""
    text = f"{history.run['run_created']['secret']}/0001/{plan.round}/{name}/{attempt}"
    key = {"project": experiment.project, "run": "0001", "round": plan.round, "facility": name,
           "attempt": attempt, "nonce": hashlib.sha256(text.encode()).hexdigest()[:32]}
    return {"key": key, "base_model_sha256": plan.base_sha256}

# === 5. facility/: one facility's part of a round as a pure state machine =========================
# Phases: Idle, Pushing, Submitting, (SubmitUnknown, empty_searches), (Polling, job), (Ended, job),
# Fetching, (Closing, why, fatal), Finished. The driver (section 7) makes the records durable, does
# the action, and hands the action's result to step() as the next event.

def step(policy, state, polled, late, phase, event):
    """-> records, next phase, action. `polled`: this process's jobs; `late`: after the deadline."""
    attempt = state.attempts[-1] if state.attempts else {}
    if late and policy.on_missing != "wait" and (
            phase in ("Idle", "Pushing", "Submitting") or phase[0] == "SubmitUnknown"
            or phase[0] == "Polling" and event == ("Polled", False, True)):  # a poll comes first
        why = {"reason": "no update before the round's deadline"}
        if phase == "Idle": return [("facility_missing", why)], "Finished", None
        cancel = [("cancel_intended", {})] if "submit_intended" in attempt else []
        return cancel, ("Closing", why["reason"], True), "Fence"
    match phase, event:
        case "Idle", "TimerFired":
            if len(state.attempts) - state.attempts_before_resume < policy.max_attempts:
                return [("attempt_opened", {})], "Pushing", "Push"
            return [("facility_missing", attempt["attempt_failed"])], "Finished", None
        case "Pushing", "Pushed": return [("pushed", {}), ("submit_intended", {})], "Submitting", "Submit"
        case "Submitting", "ReplyLost":  # a job may exist: never submit again blindly
            return [], ("SubmitUnknown", 0), ("Sleep", policy.settle_time)
        case ("SubmitUnknown", 0), ("Found", []):  # the queue may show a job late: search twice
            return [], ("SubmitUnknown", 1), ("Sleep", policy.settle_time)
        case ("SubmitUnknown", 1), ("Found", []): return [], "Submitting", "Submit"
        case ("Submitting", ("Submitted", job)) | (("SubmitUnknown", _), ("Found", [job, *_])):
            return [("submitted", {"job_id": job})], ("Polling", job), ("Poll", job)
        case ("Polling" | "Ended", job), "TimerFired": return [], phase, ("Poll", job)
        case ("Polling" | "Ended" | "Closing", *_), ("Polled", True, _):  # only a report is success
            return [], "Fetching", "Fetch"
        case ("Polling" | "Ended", job), ("Polled", _, True):
            return [], ("Polling", job), ("Sleep", policy.poll_interval)
        case ("Polling", job), ("Polled", *_):  # a shared file system may show the report late
            return [], ("Ended", job), ("Sleep", policy.settle_time)
        case (("SubmitUnknown", _), "TimerFired") | (("Ended", _), ("Polled", *_)): return [], phase, "FindJobs"
        case ("Ended", _), ("Found", jobs):  # a duplicate job may hold the claim
            for job in sorted(set(jobs) - polled):
                return [("submitted", {"job_id": job})], ("Polling", job), ("Poll", job)
            return [], ("Closing", "ended without a report", False), "Fence"
        case "Fetching", ("Fetched", update): return [("update_accepted", update)], "Finished", None
        case "Fetching", ("UpdateRejected", why): return [], ("Closing", "rejected: " + why, True), "Fence"
        case ("Closing", *_), "Fenced" if "cancel_intended" in attempt: return [], phase, "Cancel"
        case ("Closing", _, False), "Fenced":  # no job can begin now: the final poll
            return [], phase, ("Poll", attempt["submitted"]["job_id"])
    _, why, fatal = phase  # the end of Closing
    records = [("cancel_confirmed", {})] if "cancel_intended" in attempt else []
    records += [("attempt_failed", {"reason": why})]
    if not fatal: return records, "Idle", ("Sleep", 0)
    return records + [("facility_missing", {"reason": why})], "Finished", None

def resume(policy, state):
    """The phase and the first action of a started coordinator: both follow from the events."""
    attempt = state.attempts[-1] if state.attempts else {"attempt_failed": {}}
    if state.accepted() or state.missing: return "Finished", None
    if "attempt_failed" in attempt: return "Idle", ("Sleep", 0)
    if "cancel_intended" in attempt: return ("Closing", "cancelled before", False), "Fence"
    job = attempt.get("submitted", {}).get("job_id")
    if job: return ("Polling", job), ("Poll", job)
    # An intent without an outcome: the submission may have arrived.
    if "submit_intended" in attempt: return ("SubmitUnknown", 0), ("Sleep", policy.settle_time)
    return "Pushing", "Push"  # a push may be repeated: it needs no intent

# === 6. A simulated facility: folders, a queue and the jobs. They survive the coordinator =========
def train(text, batch_size, weight, round, steps=60):
    """SGD on the text: the change of `weight`, tokens seen. A token is the low 5 bits of a letter."""
    tokens = np.array([ord(letter) & 31 for letter in text])
    trained, random = weight.copy(), np.random.default_rng(round)
    for _ in range(steps):
        at = random.integers(0, len(tokens) - 1, batch_size)
        p = np.exp(trained[tokens[at]])
        p /= p.sum(axis=1, keepdims=True)
        p[range(batch_size), tokens[at + 1]] -= 1  # now the gradient of the loss by the logits
        np.add.at(trained, tokens[at], -4 * p / np.float32(batch_size))
    return trained - weight, steps * batch_size

class SimulatedFacility:
    def __init__(self, folder, seed, settings):
        self.folder, self.seed, self.settings, self.queue = folder, seed, settings, folder / "queue"
        self.jobs = json.loads(self.queue.read_text()) if self.queue.exists() else []
    def save(self): self.queue.write_text(json.dumps(self.jobs))
    def model(self, sha256): return self.folder / "models" / sha256[:16]
    def chance(self, *key):  # 0 to 1, the same for the same key
        digest = hashlib.sha256(repr((self.seed, self.folder.name, key)).encode()).digest()
        return int.from_bytes(digest[:4], "big") / 2**32
    def sbatch(self, name, folder, round, now):
        luck, never = self.chance("sbatch", name, now), self.chance("stuck", round) < 0.06
        if luck < 0.2: raise TimeoutError("the connection is lost, and no job exists")
        self.jobs.append({"id": len(self.jobs) + 1, "name": name, "folder": str(folder),
                          "state": "PENDING", "shown": now + (300 if luck < 0.3 else 0),
                          "start": 1e9 if never else now + 200, "report": now + 500 + 50 * luck})
        self.save()
        if luck < 0.4: raise TimeoutError("the connection is lost, and the job exists")
        return len(self.jobs)
    def advance(self, now):
        for job in self.jobs:
            folder, name = pathlib.Path(job["folder"]), job["name"]
            if job["state"] == "PENDING" and job["start"] <= now:
                try: (folder / "claim").mkdir()  # a job's first act: its creator alone trains
                except FileExistsError: job["state"] = "NOTHING_TO_DO"
                else: job["state"] = "RUNNING"
            if job["state"] == "RUNNING" and job["start"] + 300 <= now:
                fails = name.endswith("-a1") and self.chance("node", name) < 0.25
                job["state"] = "NODE_FAIL" if fails else "COMPLETED"
            if job["state"] == "COMPLETED" and job["report"] <= now:
                self.run_job(folder)
                job["state"] = "REPORTED"
        self.save()
    def run_job(self, folder):
        job = json.loads((folder / "job.json").read_text())
        model, round = read_model(self.model(job["base_model_sha256"])), job["key"]["round"]
        delta, tokens = train(**self.settings, weight=model["bigram.weight"], round=round)
        if self.chance("useless", round) < 0.06: delta *= 0
        sha256 = write_model(folder / "out/update", {"bigram.weight": delta}, "BF16")
        report = job | {"update_sha256": sha256, "tokens": tokens}
        (folder / "out/report.json").write_text(json.dumps(report))  # last of all

# === 7. facility/: the driver, which does the machine's actions ===================================
class FacilityMachine:
    def __init__(self, history, experiment, plan, name, site, run):
        self.history, self.experiment, self.plan, self.name = history, experiment, plan, name
        self.site, self.run, self.wake, self.polled = site, run, 0, set()
        self.state = history.rounds[plan.round]["state"][name]
        self.phase, self.action = resume(experiment.policy, self.state)
    def drive(self):
        """Steps until the machine sleeps or is finished."""
        round, policy = self.history.rounds[self.plan.round], self.experiment.policy
        while self.phase != "Finished":
            event = self.act(*[self.action] if isinstance(self.action, str) else self.action)
            if event is None: return
            late = self.history.now > round.get("first_submission", 1e9) + policy.deadline
            records, self.phase, self.action = step(policy, self.state, self.polled, late, self.phase, event)
            for kind, payload in records:
                number = len(self.state.attempts) + (kind == "attempt_opened")
                self.history.record(kind, self.plan.round, self.name, number, **payload)
    def act(self, action, argument=None):
        site, round, now = self.site, self.plan.round, self.history.now
        number = len(self.state.attempts)
        folder, name = site.folder / f"r{round:04}/a{number}", f"{self.name}-r{round}-a{number}"
        job = make_job(self.experiment, self.history, self.plan, self.name, number)
        base, fetched = self.run / f"r{round - 1:04}/global", self.run / f"r{round:04}/{self.name}"
        jobs = [each for each in site.jobs if each["name"] == name]
        match action:
            case "Sleep":
                self.wake = self.wake or now + argument
                if now < self.wake: return None
                self.wake = 0
            case "Push":
                shutil.copytree(base, site.model(job["base_model_sha256"]), dirs_exist_ok=True)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "job.json").write_text(json.dumps(job))
            case "Submit":
                try: return "Submitted", site.sbatch(name, folder, round, now)
                except TimeoutError: return "ReplyLost"
            case "FindJobs": return "Found", [each["id"] for each in jobs if each["shown"] <= now]
            case "Poll":
                self.polled.add(argument)
                alive = site.jobs[argument - 1]["state"] in ("PENDING", "RUNNING")
                return "Polled", (folder / "out/report.json").exists(), alive
            case "Fence": (folder / "claim").mkdir(exist_ok=True)  # the coordinator takes the claim
            case "Cancel":
                for each in jobs: each["state"] = "CANCELLED"
                site.save()
            case "Fetch":
                shutil.copytree(folder / "out", fetched, dirs_exist_ok=True)
                report = json.loads((fetched / "report.json").read_text())
                try: verify_update(fetched / "update", report, job, read_model(base))
                except ValueError as error: return "UpdateRejected", str(error)
                return "Fetched", {"update_sha256": report["update_sha256"], "report": report}
        return {"Sleep": "TimerFired", "Push": "Pushed", "Fence": "Fenced", "Cancel": "Cancelled"}[action]

# === 8. run/: the federation ======================================================================
def run_round(history, experiment, plan, sites, run):
    if plan.round not in history.rounds: history.record("round_planned", **plan._asdict())
    record, folder = history.rounds[plan.round], run / f"r{plan.round:04}"
    if "participants_frozen" not in record:
        machines = [FacilityMachine(history, experiment, plan, *site, run) for site in sites.items()]
        while any(machine.phase != "Finished" for machine in machines):
            for machine in machines: machine.drive()  # the product: a thread for each
            history.now += 10                         # simulated seconds
            for site in sites.values(): site.advance(history.now)
        updates = [(name, s.accepted()) for name, s in record["state"].items() if s.accepted()]
        if len(updates) < plan.quorum:
            history.record("run_stopped", reason=f"{len(updates)} of {plan.quorum} updates")
            sys.exit(f"round {plan.round}: {len(updates)} updates, the quorum is {plan.quorum}")
        # From here on the set is fixed, whatever arrives later. The weights are tokens.
        history.record("participants_frozen", plan.round, facilities=[name for name, _ in updates],
                       weights=[update["report"]["tokens"] for _, update in updates])
    if "aggregated" not in record:
        updates = [(name, weight, read_model(folder / name / "update"))
                   for name, weight in zip(*record["participants_frozen"].values())]
        master = server_step(read_model(run / f"r{plan.round - 1:04}/master"), updates)
        write_model(folder / "master", master, "F32")
        model_sha256 = write_model(folder / "global", master, "BF16")
        history.record("aggregated", plan.round, model_sha256=model_sha256)
    (run / "CURRENT.tmp").write_text(f"{folder.name}/global")
    (run / "CURRENT.tmp").rename(run / "CURRENT")  # published in one rename
    history.record("published", plan.round, model_sha256=record["aggregated"]["model_sha256"])

def run_federation(workdir, seed=1, kill_at=None, torn=False, log=lambda event: None):
    """Runs the federation, or resumes it. Returns the root hash of the final model."""
    run = workdir / "runs/0001"
    run.mkdir(parents=True, exist_ok=True)
    history = RunHistory(Store(run / "events.jsonl", kill_at, torn), log)
    sites = {name: SimulatedFacility(workdir / "work" / name, seed, settings)
             for name, settings in EXPERIMENT.facilities.items()}
    if "run_created" in history.run: history.record("run_resumed")
    else: history.record("run_created", secret=hashlib.sha256(b"%d" % seed).hexdigest()[:32])
    if "model_imported" not in history.run:
        zero = {"bigram.weight": np.zeros((32, 32), np.float32)}
        write_model(run / "r0000/master", zero, "F32")
        history.record("model_imported", model_sha256=write_model(run / "r0000/global", zero, "BF16"))
    while plan := next_round(EXPERIMENT, history):
        run_round(history, EXPERIMENT, plan, sites, run)
    if "run_completed" not in history.run: history.record("run_completed")
    return root_sha256(run / (run / "CURRENT").read_text())

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1, help="of the facilities' faults")
    parser.add_argument("--kill-at", type=int, help="die when the event of this number is durable")
    parser.add_argument("--torn", action="store_true", help="with --kill-at: when half of the event is written")
    line = "{seq:4} {time:5} s  r{round} {facility:4} a{attempt} {kind:19} {payload!s:.80}"
    print("final model:", run_federation(**vars(parser.parse_args()), log=lambda e: print(line.format(**e))))
