"""check_event_kinds.py must find a kind or a payload's field outside the table."""
import pathlib
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).parent.parent.parent / "scripts" / "check_event_kinds.py"
TABLE = {"src/history/events.cc": 'kind<Pushed>("pushed"), kind<RoundPlanned>("round_planned")'}


def expect(files, words):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**TABLE, **files}.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
    assert (done.returncode == 0) == (words is None), done.stdout + done.stderr
    assert words is None or words in done.stdout + done.stderr, done.stdout + done.stderr


expect({}, None)
expect({"src/run/a.cc": 'log("pushed to x"); // "pushed"\n'}, None)
expect({"src/run/a.cc": '  // record("pushed")\n'}, None)
expect({"src/run/a.cc": 'record("round_planned", 1);\n'}, 'src/run/a.cc: the event kind "round_planned"')
expect({"apps/xffl/a.cc": 'if (event.kind == "pushed") {}\n'}, 'apps/xffl/a.cc: the event kind "pushed"')
expect({"src/run/a.cc": 'x = record.payload["reason"];\n'}, "fields of payloads")
expect({"src/run/a.cc": 'x = payload.value("reason", "");\n'}, "fields of payloads")
expect({"src/status/status.cc": 'return "pushed";\n'}, None)
expect({"src/status/status.cc": 'return "round_planned";\n'}, 'the event kind "round_planned"')
expect({"src/history/events.cc": ""}, "no kind found")
print("ok")
