"""scripts/package.sh image refuses what is no bundle, and scripts/check_image.sh finds images that differ or are damaged.
scripts/package.sh trainer makes an archive only of a bundle that its checks accept.

Exit code 77: skopeo, umoci, squashfs-tools or a library's licence is not installed, and the tests with them were skipped.
"""
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
OTHER = "x86_64" if platform.machine() == "aarch64" else "aarch64"  # images of it are not started
LICENCES = [pathlib.Path("/usr/share/doc", name, "copyright")
            for name in ("libcli11-dev", "nlohmann-json3-dev", "libspdlog-dev", "libfmt-dev", "libgloo-dev")]
TOOLS = ("skopeo", "umoci", "mksquashfs", "unsquashfs")


def run(*command, code=0):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


class Bundle(unittest.TestCase):
    def test_of_another_name_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("xffl-0.1.0.tar.gz", "xffl-trainer-0.1.0-x86_64-cpu.tar.gz", "xffl-trainer-0.1.0-x86_64-cpu-0123456z.tar.gz"):
                file = pathlib.Path(folder, name)
                file.touch()
                self.assertIn("is no bundle: expected xffl-trainer-VERSION", run(SCRIPTS / "package.sh", "image", file, code=2))
            self.assertIn("there is no file", run(SCRIPTS / "package.sh", "image", f"{folder}/none.tar.gz", code=2))
            other = pathlib.Path(folder, "xffl-trainer-0.1.0-riscv64-cpu-01234567.tar.gz")
            other.touch()
            self.assertIn("'riscv64': expected x86_64 or aarch64", run(SCRIPTS / "package.sh", "image", other, code=2))
        self.assertIn("usage:", run(SCRIPTS / "package.sh", "image", code=2))


@unittest.skipUnless(platform.machine() == "x86_64" and all(path.exists() for path in LICENCES), "bundles are not built here")
class Trainer(unittest.TestCase):
    """scripts/package.sh in a tree with made-up programs, libraries, licences and checks."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree, self.dist = pathlib.Path(scratch.name, "tree"), pathlib.Path(scratch.name, "dist")
        site = ".deps/venv/lib/python3.12/site-packages"
        self.write("CMakeLists.txt", "project(xffl VERSION 0.1.0)\n")
        self.write("scripts/check_package.py", "")
        wheels = ("torch", "pyarrow", "nvidia_cuda_runtime", "nvidia_cuda_cupti")
        for licence in ("LICENSE", ".deps/sysroot/x86_64/usr/share/doc/gcc-10-base/copyright",
                        *(f"{site}/{name}-1.dist-info/LICENSE" for name in wheels)):
            self.write(licence, "a licence\n")
        for script in ("bootstrap.sh", "build.sh"):
            self.write(f"scripts/{script}", "#!/bin/sh\n")
        shutil.copy(SCRIPTS / "package.sh", self.tree / "scripts")
        libraries, shared = self.tree / site / "torch/lib", ("-shared", "-fPIC")
        self.compile("int inner(void) { return 7; }", libraries / "libinner.so", *shared)
        self.compile("int inner(void); int outer(void) { return inner(); }", libraries / "libouter.so", *shared, "-linner")
        for name in ("xffl-train", "xffl-tokenize"):
            self.compile("int outer(void); int main(void) { return outer(); }", f"build/bundle-cpu/bin/{name}", "-louter")

    def write(self, name, text):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def compile(self, text, name, *options):
        libraries = self.tree / ".deps/venv/lib/python3.12/site-packages/torch/lib"
        self.write(name, "")
        self.write("source.c", text)
        run("gcc", self.tree / "source.c", "-o", self.tree / name, f"-L{libraries}", f"-Wl,-rpath-link,{libraries}", *options)

    def archives(self, check, code):
        """The archives after a check of the bundle that ends with this exit code."""
        self.write("scripts/check_package.sh", f"#!/bin/sh\nexit {check}\n")
        run("env", "-u", "XFFL_DEPS_DIR", self.tree / "scripts/package.sh", "trainer", "--output", self.dist, code=code)
        return list(self.dist.glob("*.tar.gz"))

    def test_of_a_bundle_that_does_not_start_is_no_archive(self):
        self.assertEqual(self.archives(check=1, code=1), [])
        self.assertEqual(len(self.archives(check=77, code=0)), 1)  # it cannot be started here

    def test_has_programs_and_their_libraries_with_a_manifest(self):
        archive, = self.archives(check=0, code=0)
        self.assertRegex(archive.name, "^xffl-trainer-0.1.0-x86_64-cpu-[0-9a-f]{8}.tar.gz$")
        with tempfile.TemporaryDirectory() as folder:
            run("tar", "-C", folder, "-xzf", archive)
            bundle = pathlib.Path(folder, archive.name.removesuffix(".tar.gz"))
            lines = (bundle / "MANIFEST").read_text().splitlines()
            self.assertEqual({name for _, name in map(str.split, lines)},
                             {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()} - {"MANIFEST"})
            for digest, name in map(str.split, lines):
                self.assertEqual(hashlib.sha256((bundle / name).read_bytes()).hexdigest(), digest)
            self.assertEqual(sorted(path.name for path in (bundle / "lib").iterdir()), ["libinner.so", "libouter.so"])
            self.assertEqual((bundle / "bin/xffl-train").stat().st_mode & 0o777, 0o755)


@unittest.skipUnless(all(map(shutil.which, TOOLS)), f"one of {', '.join(TOOLS)} is not installed")
class Images(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.tree = self.folder / "tree"
        program = self.tree / "opt/xffl/bin/xffl-train"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        (self.tree / "bin").symlink_to("opt/xffl/bin")
        digest = hashlib.sha256(program.read_bytes()).hexdigest()
        (self.tree / "opt/xffl/MANIFEST").write_text(f"{digest}  bin/xffl-train\n")
        self.program = program
        self.prefix = self.folder / f"xffl-image-0.1.0-{OTHER}-cpu-01234567"

    def pack(self, endings=("tar.gz", "sqsh", "oci.tar", "def")):
        for path in [self.tree, *self.tree.rglob("*")]:
            os.utime(path, (0, 0), follow_symlinks=False)
        layer = f"{self.prefix}.layer.tar.gz"
        run("tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-C", self.tree, "-czf", layer, ".")
        for ending in endings:
            file = pathlib.Path(f"{self.prefix}.{ending}")
            file.unlink(missing_ok=True)
            if ending == "tar.gz":
                shutil.copy(layer, file)
            elif ending == "sqsh":
                run("mksquashfs", self.tree, file, "-all-root", "-all-time", "0", "-mkfs-time", "0", "-no-xattrs", "-quiet", "-no-progress")
            elif ending == "oci.tar":
                run(sys.executable, SCRIPTS / "oci_archive.py", layer, file, "--tag", "0.1.0", "--arch", "amd64")
            else:
                file.write_text("Bootstrap: oci-archive\n")

    def check(self, code):
        return run(SCRIPTS / "check_image.sh", self.prefix, code=code)

    def test_of_one_tree_pass(self):
        self.pack()
        text = self.check(0)
        self.assertIn("have the same", text)
        self.assertIn("the image was not started", text)

    def test_of_two_trees_are_found(self):
        for ending, name in (("sqsh", "squashfs"), ("oci.tar", "bundle/rootfs")):
            self.pack()
            added = self.tree / "added"
            added.touch()
            self.pack([ending])
            added.unlink()
            self.assertIn(f"the tree of {name} is not the tar's", self.check(1))

    def test_with_a_damaged_bundle_are_found(self):
        self.program.write_text("#!/bin/sh\n#\n")
        self.pack()
        self.assertIn("the bundle of the image is damaged", self.check(1))

    def test_with_a_setuid_file_are_found(self):
        self.program.chmod(0o4755)
        self.pack()
        self.assertIn("is setuid", self.check(1))

    def test_that_lack_a_file_are_found(self):
        self.pack(("tar.gz", "sqsh", "oci.tar"))
        self.assertIn(f"there is no {self.prefix}.def", self.check(1))


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result  # names the reasons of skipped tests
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
