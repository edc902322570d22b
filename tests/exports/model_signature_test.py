"""The public tool model_signing (PyPI) verifies the signature of `xffl export model --signing-key`, and notices any change."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent.parent
XFFL = pathlib.Path(os.environ["XFFL_BIN"]) / "xffl"


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=60,
                          stdin=subprocess.DEVNULL)


def openssl(*words):
    made = run("openssl", *words)
    assert made.returncode == 0, made.stderr


def make_key(folder, curve):
    key, public = folder / f"{curve}.pem", folder / f"{curve}.pub"
    openssl("ecparam", "-name", curve, "-genkey", "-noout", "-out", key)
    openssl("ec", "-in", key, "-pubout", "-out", public)
    return key, public


def export(folder, name, key):
    return run(XFFL, "export", "model", "-p", folder / "project", "--license", "cc-by-4.0", "--signing-key", key, folder / name)


def verify(model, public):
    return run(sys.executable, "-m", "model_signing", "verify", "key", model, "--signature", model / "model.sig",
               "--public_key", public)


def check_curves(folder):
    for curve in ("prime256v1", "secp384r1", "secp521r1"):
        key, public = make_key(folder, curve)
        made = export(folder, curve, key)
        assert made.returncode == 0, made.stderr
        good = verify(folder / curve, public)
        assert good.returncode == 0, f"{curve}: {good.stdout}{good.stderr}"


def check_changes(folder):
    public = folder / "prime256v1.pub"
    model = folder / "changed"

    def changed(change):
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(folder / "prime256v1", model)
        change()
        return verify(model, public).returncode != 0

    def flip():
        path = next(model.glob("*.safetensors"))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    assert not changed(lambda: None), "a copy is the same model"
    assert changed(flip), "one bit of the weights"
    assert changed((model / "README.md").unlink), "a file less"
    assert changed(lambda: (model / "more").write_text("x", encoding="utf-8")), "a file more"
    assert verify(folder / "prime256v1", make_key(folder / "other", "prime256v1")[1]).returncode != 0, "another key"


def check_keys(folder):
    openssl("genpkey", "-algorithm", "ed25519", "-out", folder / "ed25519.pem")
    openssl("ecparam", "-name", "secp256k1", "-genkey", "-noout", "-out", folder / "other_curve.pem")
    openssl("ec", "-in", folder / "prime256v1.pem", "-aes256", "-passout", "pass:secret", "-out", folder / "locked.pem")
    (folder / "noise.pem").write_bytes(bytes(range(256)))
    for name in ("ed25519", "other_curve", "locked", "noise", "absent"):
        refused = export(folder, f"by_{name}", folder / f"{name}.pem")
        assert refused.returncode not in (0, 70), f"{name}: {refused.returncode} {refused.stderr}"
        assert f"{name}.pem" in refused.stderr, refused.stderr
        assert name == "absent" or "openssl ecparam -name prime256v1" in refused.stderr, refused.stderr
        assert not (folder / f"by_{name}").exists(), f"{name}: a folder without its signature"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "other").mkdir()
        subprocess.run(["tar", "-xzf", ROOT / "tests/golden/run/killed_in_round_2.tar.gz", "-C", folder], check=True, timeout=60)
        check_curves(folder)
        check_changes(folder)
        check_keys(folder)
    print("ok")


if __name__ == "__main__":
    main()
