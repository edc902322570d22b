"""scripts/check_package.py accepts a sound bundle and names each fault of an unsound one."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/check_package.py"
RPATH = ["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../lib"]
PROGRAM = '#include <stdio.h>\nint part(void);\nint main(void) { return printf("%d\\n", part()); }\n'
LIBRARY = "int part(void) { return 7; }\n"


def compile_c(text, out, *options):
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-x", "c", "-", "-x", "none", "-o", str(out), *options], input=text, text=True, check=True)


def make_bundle(folder, program=PROGRAM, rpath=RPATH, library_options=(), library="libpart.so"):
    compile_c(LIBRARY, folder / "lib" / library, "-shared", "-fPIC", f"-Wl,-soname,{library}", *library_options)
    compile_c(program, folder / "bin/tool", f"-L{folder}/lib", f"-l:{library}", *rpath)


def check(folder, *options):
    done = subprocess.run([sys.executable, SCRIPT, folder, *options], capture_output=True, text=True)
    assert done.returncode in (0, 1) and not done.stderr, done
    return done.returncode, done.stdout


def expect(fault, folder, *options):
    code, out = check(folder, *options)
    assert code == 1 and fault in out, (fault, code, out)


def main():
    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)
        make_bundle(top / "good")
        code, out = check(top / "good", "--glibc", "9.9")
        assert code == 0 and out.startswith("2 ELF files"), out
        expect("above glibc 2.0", top / "good", "--glibc", "2.0")
        expect("does not need libpthread.so.0", top / "good", "--glibc", "2.33")

        make_bundle(top / "runpath", rpath=["-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../lib"])
        expect("has a RUNPATH", top / "runpath", "--glibc", "9.9")
        make_bundle(top / "elsewhere", rpath=["-Wl,--disable-new-dtags", "-Wl,-rpath,/opt/lib"])
        expect("its RPATH is /opt/lib", top / "elsewhere", "--glibc", "9.9")

        make_bundle(top / "host", library_options=["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN:/usr/local/lib64"])
        expect("lib/libpart.so: its RPATH has /usr/local/lib64", top / "host", "--glibc", "9.9")
        make_bundle(top / "relative", rpath=[*RPATH, "-Wl,-z,pack-relative-relocs"])
        expect("needs GLIBC_ABI_DT_RELR of libc.so.6, above glibc 9.9", top / "relative", "--glibc", "9.9")

        make_bundle(top / "missing")
        (top / "missing/lib/libpart.so").unlink()
        expect("needs libpart.so, which is not in lib/", top / "missing", "--glibc", "9.9")

        make_bundle(top / "site", library="libfabric.so.1")
        expect("belongs to the site", top / "site", "--glibc", "9.9")

        # A library with a RUNPATH needs another one: a site's LD_LIBRARY_PATH replaces it, unless the program needs it, too.
        for name, also in (("hijack", []), ("pinned", ["-Wl,--no-as-needed", "-l:libinner.so"])):
            compile_c("int inner(void) { return 7; }\n", top / name / "lib/libinner.so", "-shared", "-fPIC", "-Wl,-soname,libinner.so")
            compile_c("int inner(void);\nint part(void) { return inner(); }\n", top / name / "lib/libpart.so", "-shared", "-fPIC",
                      "-Wl,-soname,libpart.so", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN", f"-L{top / name}/lib", "-l:libinner.so")
            compile_c(PROGRAM, top / name / "bin/tool", f"-L{top / name}/lib", "-l:libpart.so", *also, "-Wl,-rpath-link", f"{top / name}/lib", *RPATH)
        expect("lib/libpart.so: has a RUNPATH, so that LD_LIBRARY_PATH can replace libinner.so", top / "hijack", "--glibc", "9.9")
        code, out = check(top / "pinned", "--glibc", "9.9")
        assert code == 0, out

        # The driver's library: a library that waits for a GPU may need it, the program may not.
        make_bundle(top / "driver")
        compile_c(LIBRARY, top / "libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
        gpu = ["-shared", "-fPIC", "-Wl,--no-as-needed", f"-L{top}", "-l:libcuda.so.1"]
        compile_c(LIBRARY, top / "driver/lib/libgpu.so", "-Wl,-soname,libgpu.so", *gpu)
        code, out = check(top / "driver", "--glibc", "9.9")
        assert code == 0, out
        compile_c(LIBRARY, top / "driver/lib/libpart.so", "-Wl,-soname,libpart.so", *gpu)
        expect("lib/libpart.so: needs libcuda.so.1, so that the programs do not start without a GPU", top / "driver", "--glibc", "9.9")

        # Network plug-ins open libcudart.so.
        make_bundle(top / "plugin")
        for soname in ("libtorch_cuda.so", "libcudart.so.13"):
            compile_c(LIBRARY, top / "plugin/lib" / soname, "-shared", "-fPIC", f"-Wl,-soname,{soname}")
        expect("lib/libcudart.so: is no link to libcudart.so.13", top / "plugin", "--glibc", "9.9")
        (top / "plugin/lib/libcudart.so").symlink_to("libcudart.so.13")
        code, out = check(top / "plugin", "--glibc", "9.9")
        assert code == 0, out

        # The bundle's copy of a library is older than the one that the program was linked with.
        script = top / "map"
        script.write_text("PART_1 { global: part; };\n")
        make_bundle(top / "older", library_options=[f"-Wl,--version-script={script}"])
        script.write_text("PART_0 { global: part; };\n")
        compile_c(LIBRARY, top / "older/lib/libpart.so", "-shared", "-fPIC", "-Wl,-soname,libpart.so", f"-Wl,--version-script={script}")
        expect("needs PART_1 of libpart.so, which the bundle's copy lacks", top / "older", "--glibc", "9.9")

        make_bundle(top / "leak", program='const char* where = "/home/me/src/file.cc";\n' + PROGRAM)
        expect("has a path of the building machine: /home/me/src/file.cc", top / "leak", "--glibc", "9.9")
        (top / "empty").mkdir()
        expect("no program in bin/", top / "empty")
    print("ok")


main()
