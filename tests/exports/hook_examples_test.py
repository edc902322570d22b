"""The examples of hooks in configs/hooks send the event: by a sendmail, and by curl to a server of this machine."""
import http.server
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import unittest

HOOKS = pathlib.Path(__file__).resolve().parents[2] / "configs/hooks"
EVENT = '{"schema":1,"id":"0001-7","text":"alba is paused: \\"maintenance\\" $(id) `id`"}\n'


class Examples(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def run_hook(self, *words, path=""):
        return subprocess.run(words, input=EVENT, text=True, check=False, timeout=30, capture_output=True,
                              env={"PATH": f"{path}:/usr/bin:/bin", "XFFL_EVENT": "facility_paused", "HOME": str(self.folder)})

    def test_mail(self):
        sendmail = self.folder / "sendmail"
        sendmail.write_text(f"#!/bin/sh\ncat > {self.folder}/mail\n")
        sendmail.chmod(0o755)
        run = self.run_hook(HOOKS / "mail.sh", "me@example.org", path=self.folder)
        self.assertEqual(run.returncode, 0, run.stderr)
        head, _, body = (self.folder / "mail").read_text().partition("\n\n")
        self.assertIn("To: me@example.org", head.splitlines())
        self.assertIn("Subject: xffl: facility_paused", head.splitlines())
        self.assertEqual(body, EVENT)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_webhook(self):
        got = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                got.append((self.path, self.headers["Content-Type"],
                            self.rfile.read(int(self.headers["Content-Length"])).decode()))
                self.send_response(500 if "broken" in self.path else 204)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        for path, status in (("token", 0), ("broken", 22)):
            settings = self.folder / "curl.conf"
            settings.write_text(f'url = "http://127.0.0.1:{server.server_address[1]}/{path}"\n')
            run = self.run_hook(HOOKS / "webhook.sh", str(settings))
            self.assertEqual(run.returncode, status, run.stderr)
        self.assertEqual(got[0], ("/token", "application/json", EVENT))


if __name__ == "__main__":
    unittest.main()
