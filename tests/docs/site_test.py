"""docs/ builds as a web site without a warning (`mkdocs build --strict`), and the site loads nothing from other hosts.

    site_test.py DEPS_FOLDER     exit code 77: mkdocs is not installed
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent.parent
# Loads of a page: the site must work without a network, and tell nobody who reads it.
LOAD = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""", re.I)


def build(config, site, packages):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", site],
        env={**os.environ, "PYTHONPATH": str(packages)}, capture_output=True, text=True, check=False, timeout=100)


def check_site(packages, folder):
    site = folder / "site"
    built = build(ROOT / "mkdocs.yml", site, packages)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = sorted(site.rglob("*.html"))
    sources = [page for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) >= len(sources), f"{len(pages)} pages of {len(sources)} sources"
    for page in pages:
        found = LOAD.search(page.read_text(encoding="utf-8"))
        assert not found, f"{page.relative_to(site)} loads {found[0]}"
    print(f"{len(pages)} pages")


def check_that_a_broken_link_fails(packages, folder):
    docs = folder / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Title\n\n[a section](index.md#no-such-section)\n", encoding="utf-8")
    config = folder / "mkdocs.yml"
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("docs_dir: docs", f"docs_dir: {docs}")
    config.write_text(text, encoding="utf-8")
    built = build(config, folder / "broken", packages)
    assert built.returncode != 0 and "no-such-section" in built.stdout + built.stderr, built.stdout + built.stderr


def main():
    packages = pathlib.Path(sys.argv[1]) / "mkdocs"
    if not (packages / "mkdocs").is_dir():
        print(f"SKIP mkdocs is not installed in {packages} (scripts/bootstrap.sh test)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        check_site(packages, pathlib.Path(folder))
        check_that_a_broken_link_fails(packages, pathlib.Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
