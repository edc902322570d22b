"""docs/developer/reference_federation.py: its server step makes the product's bytes, it ends with one
model whenever its coordinator was killed, and it stays readable in ten minutes.

reference_test.py AGGREGATE_TOOL
"""
import collections
import importlib.util
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

SCRIPT = pathlib.Path(__file__).parents[2] / "docs/developer/reference_federation.py"
spec = importlib.util.spec_from_file_location("reference_federation", SCRIPT)
reference = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = reference  # @dataclass looks its module up
spec.loader.exec_module(reference)

TOOL = sys.argv.pop(1)
MAX_LINES = 400
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # thousands of fsyncs
NOUNS = ["RoundPlan", "RunHistory", "FacilityDriver", "FacilityMachine", "Store", "participants", "publish", "claim",
         "fence", "nonce", "attempt", "settle time", "deadline", "quorum", "server_step", "check_update", "job_spec",
         "master"]
MACHINE = SCRIPT.parents[2] / "include/xffl/facility/machine.h"
# Events of outages, credentials, refused submissions and continued jobs.
ABSENT = {"Checkpointed", "SubmitRejected", "SubmitDeferred", "Unreachable", "AuthRequired"}
SHAPES = {"b.weight": (37, 211), "a.bias": (3,), "c.scalar": (), "d.weight": (131072 + 5, 1), "e.empty": (0, 4)}


def random_tensors(rng, size):
    """Values of many magnitudes, with signed zeros, subnormals and ties of bf16 in front."""
    tensors = {}
    for name, shape in SHAPES.items():
        x = rng.standard_normal(shape) * size * np.exp2(rng.integers(-20, 4, shape))
        flat = np.array(x, np.float32).reshape(-1)
        special = np.array([-0.0, 0.0, 2.0**-24, 2.0**-133, 1 + 2.0**-8, 1 + 3 * 2.0**-8], np.float32)
        count = min(flat.size // 3, special.size)
        flat[:count] = special[:count]
        tensors[name] = flat.reshape(shape)
    return tensors


def to_bytes(x, dtype):
    if dtype == "BF16":  # the upper halves of the reference's float32
        return (reference.to_bf16(x).view("<u4") >> 16).astype("<u2").tobytes()
    return x.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def from_bytes(raw, dtype):
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4")


def safetensors(tensors, dtype):
    """The bytes of model.safetensors as the product writes it."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in sorted(tensors.items()):
        raw = to_bytes(x, dtype)
        header[name] = {"dtype": dtype, "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(folder):
    content = (folder / "model.safetensors").read_bytes()
    start, tensors = 8 + struct.unpack("<Q", content[:8])[0], {}
    for name, spec in json.loads(content[8:start]).items():
        if name != "__metadata__":
            first, last = (start + offset for offset in spec["data_offsets"])
            tensors[name] = from_bytes(content[first:last], spec["dtype"]).reshape(spec["shape"])
    return tensors


def write_folder(folder, tensors, dtype):
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(safetensors(tensors, dtype))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


class ServerStep(unittest.TestCase):
    def compare(self, dtypes, weights, kind, publish):
        rng = np.random.default_rng([7, len(kind), len(dtypes)])
        with tempfile.TemporaryDirectory() as temp:
            temp = pathlib.Path(temp)
            write_folder(temp / "master", random_tensors(rng, 1.0), "F32")
            arguments, updates = [], []
            for k, (dtype, weight) in enumerate(zip(dtypes, weights)):
                folder = temp / f"{k}-{dtype}"
                tensors = random_tensors(rng, 0.01)
                if dtypes == ["F32"] * 3:  # 1, 2^60, -2^60: another order makes another sum
                    tensors["b.weight"][1:] = [1, 2.0**60, -(2.0**60)][k]
                write_folder(folder, tensors, dtype)
                arguments += [str(folder), repr(float(weight))]
                updates.append((folder.name, weight, read_safetensors(folder)))
            out = [temp / "new", temp / "published"]
            subprocess.run([TOOL, "step", temp / "master", kind, publish, *out, *arguments], check=True,
                           stdout=subprocess.DEVNULL)
            updates.reverse()  # the order of arrival does not count
            master = reference.server_step(read_safetensors(temp / "master"), updates, kind == "deltas")
            for name, dtype in (("new", "F32"), ("published", publish)):
                found = safetensors(master, dtype)
                expected = (temp / name / "model.safetensors").read_bytes()
                self.assertEqual(len(found), len(expected))
                self.assertTrue(found == expected, f"{name}: the bytes differ from the product's")

    def test_bytes_are_the_products(self):
        for dtypes, weights in [(["BF16"] * 3, [960, 1440, 480]), (["F32", "F16", "BF16"], [0.1, 1 / 3, 7e5]),
                                (["F32"] * 3, [1, 1, 1]), (["F16"], [3])]:
            for kind in ("deltas", "weights"):
                for publish in ("BF16", "F16", "F32"):
                    with self.subTest(dtypes=dtypes, kind=kind, publish=publish):
                        self.compare(dtypes, weights, kind, publish)


def run(folder, **options):
    """The hash of the final model; None when the coordinator was killed."""
    try:
        return reference.run_federation(folder, **options)
    except SystemExit as end:
        if not str(end).startswith("killed at"):
            raise
        return None


def tear_last_event(folder):
    """The coordinator was killed while it wrote its last event: half of the line is on disk."""
    store = folder / "runs/0001/events.jsonl"
    content = store.read_bytes()
    last = content.rfind(b"\n", 0, -1) + 1
    store.write_bytes(content[:last + (len(content) - last) // 2])


def jobs_of(folder):
    return [job for queue in folder.glob("work/*/queue") for job in json.loads(queue.read_text())[1]]


def blind_submissions(folder):
    """Jobs whose attempt had another job already that a search by name would have shown."""
    blind = []
    for queue in folder.glob("work/*/queue"):
        by_name = collections.defaultdict(list)
        for job in json.loads(queue.read_text())[1]:
            by_name[job["name"]].append(job)
        for jobs in by_name.values():
            blind += [job["name"] for job in jobs[:-1] if job["shown"] < job["report"] - 400]
    return blind


def events_of(folder):
    return [json.loads(line) for line in (folder / "runs/0001/events.jsonl").read_text().splitlines()]


class Federation(unittest.TestCase):
    # Seeds whose federations end well; each meets other faults.
    SEEDS = (1, 4, 5)

    def setUp(self):
        temp = tempfile.TemporaryDirectory(dir=MEMORY)
        self.addCleanup(temp.cleanup)
        self.temp = pathlib.Path(temp.name)

    def test_every_fault_is_met(self):
        kinds, reasons, searches, jobs = collections.Counter(), set(), 0, []
        for seed in self.SEEDS:
            run(self.temp / str(seed), seed=seed)
            events = events_of(self.temp / str(seed))
            jobs += jobs_of(self.temp / str(seed))
            kinds.update(event["kind"] for event in events)
            reasons |= {event["payload"].get("reason") for event in events}
            intended = {}
            for event in events:
                key = event["round"], event["facility"], event["attempt"]
                if event["kind"] == "submit_intended":
                    intended[key] = event["time"]
                if event["kind"] == "submitted" and event["time"] > intended[key]:
                    searches += 1
        self.assertGreater(searches, 2, "no reply of sbatch was lost")
        self.assertGreater(kinds["submitted"], kinds["submit_intended"], "no duplicate job was adopted")
        states = collections.Counter(job["state"] for job in jobs)
        self.assertGreater(states["CANCELLED"], 0)
        self.assertEqual(states["PENDING"] + states["RUNNING"], 0, "a job outlives its federation")
        for reason in ("no update before the round's deadline", "its update was rejected: every element is zero",
                       "it left no report"):
            self.assertIn(reason, reasons)

    def test_the_model_learns(self):
        run(self.temp, seed=1)
        losses = []
        for round in (0, 4):
            weight = reference.read_model(self.temp / f"runs/0001/r{round:04}/global.npz")["bigram.weight"]
            log_p = weight - np.log(np.exp(weight).sum(axis=1, keepdims=True))
            for text in reference.EXPERIMENT.facilities.values():
                tokens = np.array([ord(letter) & 31 for letter in text])
                losses.append(-log_p[tokens[:-1], tokens[1:]].mean())
        for before, after in zip(losses[:3], losses[3:]):
            self.assertLess(after, before - 0.5)

    def test_a_kill_at_any_event_changes_nothing(self):
        for seed in self.SEEDS[1:2]:
            expected = run(self.temp / "whole", seed=seed)
            count = len(events_of(self.temp / "whole"))
            self.assertGreater(count, 60)
            for kill_at in range(1, count + 1):
                for torn in (False, True):
                    folder = self.temp / f"{kill_at}-{torn}"
                    self.assertIsNone(run(folder, seed=seed, kill_at=kill_at))
                    self.assertEqual(len(events_of(folder)), kill_at)
                    if torn:
                        tear_last_event(folder)
                    self.assertEqual(run(folder, seed=seed), expected, (kill_at, torn))
                    self.assertEqual(blind_submissions(folder), [], (kill_at, torn))

    def test_a_coordinator_that_dies_again_and_again_gets_there(self):
        for seed in self.SEEDS:
            expected = run(self.temp / f"whole-{seed}", seed=seed)
            folder, lives, found = self.temp / f"lives-{seed}", 0, None
            while found is None:
                lives += 1
                self.assertLess(lives, 200)
                store = folder / "runs/0001/events.jsonl"
                done = store.read_bytes().count(b"\n") if store.exists() else 0
                found = run(folder, seed=seed, kill_at=done + 4)
                if found is None and lives % 2 == 0:
                    tear_last_event(folder)
            self.assertGreater(lives, 20)
            self.assertEqual(found, expected)

    def test_the_command_line(self):
        command = [sys.executable, str(SCRIPT), str(self.temp), "--seed", "4"]
        killed = subprocess.run([*command, "--kill-at", "9"], capture_output=True, text=True)
        self.assertNotEqual(killed.returncode, 0)
        self.assertIn("killed at event 9", killed.stderr)
        resumed = subprocess.run(command, capture_output=True, text=True, check=True)
        self.assertEqual(resumed.stdout.split()[0], "10")  # the next event
        self.assertEqual(resumed.stdout.split()[-1], run(self.temp / "whole", seed=4))


class Text(unittest.TestCase):
    def test_it_is_short(self):
        lines = SCRIPT.read_text().splitlines()
        self.assertLessEqual(len(lines), MAX_LINES)
        self.assertLessEqual(max(len(line) for line in lines), 100)

    def test_it_has_the_products_nouns(self):
        text = SCRIPT.read_text()
        missing = [noun for noun in NOUNS if not re.search(rf"\b{noun}", text)]
        self.assertEqual(missing, [])

    def test_the_machine_has_the_products_phases_actions_and_events(self):
        text = MACHINE.read_text()
        for variant in ("Phase", "Action", "Event"):
            names = re.search(rf"using {variant} =\s*std::variant<([^>]*)>", text)[1]
            names = set(re.split(r"[,\s]+", names)) - ABSENT
            self.assertGreaterEqual(len(names), 9)
            self.assertEqual({name for name in names if not hasattr(reference, name)}, set())

    def test_it_needs_numpy_only(self):
        lines = re.findall(r"^(?:import|from) (.*)$", SCRIPT.read_text(), re.M)
        modules = {name.split()[0] for line in lines for name in line.split(" import ")[0].split(", ")}
        self.assertEqual(modules - set(sys.stdlib_module_names), {"numpy"})


unittest.main(warnings="ignore")  # a killed coordinator closes no files
