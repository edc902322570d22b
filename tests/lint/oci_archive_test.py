"""scripts/oci_archive.py writes an OCI image that public tools read, the same bytes each time, and refuses other input.

Exit code 77: skopeo or umoci is not installed, and its test was skipped.
"""
import gzip
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/oci_archive.py"
TREE = {"usr/bin/tool": b"#!/bin/sh\necho tool\n", "etc/os-release": b"ID=none\n", "empty": b""}


def run(*command, code=0):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def write_layer(path):
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as layer:
        for name, content in TREE.items():
            path.with_name("file").write_bytes(content)
            layer.add(path.with_name("file"), "./" + name)


class Image(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.layer = self.folder / "layer.tar.gz"
        write_layer(self.layer)
        self.image = self.folder / "image.tar"
        self.write(self.image)

    def write(self, output):
        run(sys.executable, SCRIPT, self.layer, output, "--tag", "1.2", "--arch", "arm64", "--command", "tool", "--label", "a.b=c=d")

    def test_has_the_hashes_and_sizes_of_its_parts(self):
        with tarfile.open(self.image) as archive:
            files = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
        blobs = {name.rsplit("/", 1)[1]: content for name, content in files.items() if name.startswith("blobs/")}
        self.assertEqual(len(blobs), 3)
        for name, content in blobs.items():
            self.assertEqual(hashlib.sha256(content).hexdigest(), name)

        def follow(descriptor):
            content = blobs[descriptor["digest"].removeprefix("sha256:")]
            self.assertEqual(len(content), descriptor["size"])
            return content

        self.assertEqual(json.loads(files["oci-layout"]), {"imageLayoutVersion": "1.0.0"})
        (entry,) = json.loads(files["index.json"])["manifests"]
        self.assertEqual(entry["annotations"], {"org.opencontainers.image.ref.name": "1.2"})
        manifest = json.loads(follow(entry))
        configuration = json.loads(follow(manifest["config"]))
        (layer,) = manifest["layers"]
        content = gzip.decompress(follow(layer))
        self.assertEqual(configuration["rootfs"]["diff_ids"], ["sha256:" + hashlib.sha256(content).hexdigest()])
        self.assertEqual(configuration["config"]["Labels"], {"a.b": "c=d"})

    def test_has_the_same_bytes_each_time(self):
        again = self.folder / "again.tar"
        self.write(again)
        self.assertEqual(self.image.read_bytes(), again.read_bytes())

    def test_is_read_by_skopeo(self):
        if not shutil.which("skopeo"):
            self.skipTest("skopeo is not installed")
        shown = json.loads(run("skopeo", "inspect", "--override-arch", "arm64", f"oci-archive:{self.image}"))
        self.assertEqual((shown["Architecture"], shown["Os"], shown["Labels"]), ("arm64", "linux", {"a.b": "c=d"}))
        self.assertEqual(shown["Layers"], ["sha256:" + hashlib.sha256(self.layer.read_bytes()).hexdigest()])

    def test_is_unpacked_by_umoci(self):
        if not shutil.which("umoci"):
            self.skipTest("umoci is not installed")
        layout = self.folder / "layout"
        with tarfile.open(self.image) as archive:
            archive.extractall(layout)
        run("umoci", "unpack", "--rootless", "--image", f"{layout}:1.2", self.folder / "bundle")
        root = self.folder / "bundle/rootfs"
        self.assertEqual({name: (root / name).read_bytes() for name in TREE}, TREE)

    def test_of_another_file_is_refused(self):
        for content, reason in ((b"plain text", "Not a gzipped file"), (self.layer.read_bytes()[:-20], "ended before")):
            (self.folder / "wrong").write_bytes(content)
            out = self.folder / "none.tar"
            text = run(sys.executable, SCRIPT, self.folder / "wrong", out, "--tag", "1", "--arch", "amd64", code=1)
            self.assertIn(reason, text)
            self.assertFalse(out.exists())
        self.assertIn("none of OCI", run(sys.executable, SCRIPT, self.layer, out, "--tag", "a b", "--arch", "amd64", code=2))


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result  # names the reasons of skipped tests
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
