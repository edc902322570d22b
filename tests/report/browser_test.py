#!/usr/bin/env python3
"""Opens pages of the report in headless Chromium, at the widths of a phone and of a screen, light and dark.

    browser_test.py PROGRAM FOLDER     PROGRAM writes the pages into FOLDER, which keeps them and screenshots for a look

Checks: no message of the content security policy, no script, resource or event handler in the document, no horizontal scrolling,
no text below 11 px, a label for each figure. The policy refuses an injected script and picture. The printed page has all words of
all tables, also of the tables that are folded on the screen. Exit code 77: there is no browser, or no pdftotext.
"""
import collections
import html.parser
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

WIDTHS = (400, 800, 1280)
BROWSER = next((path for name in ("chromium-headless-shell", "chromium", "chromium-browser") if (path := shutil.which(name))), None)

# Runs beside the page, in its own document: the page forbids scripts.
PROBE = """<!doctype html><body><pre id=out></pre><script>
const results = {};
function look(frame, width) {
  const document_ = frame.contentDocument, root = document_.documentElement;
  const small = new Set(), unlabelled = [];
  for (const element of document_.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    const size = parseFloat(frame.contentWindow.getComputedStyle(element).fontSize);
    if (own && size < 11 && element.getClientRects().length) small.add(element.tagName + " " + size + " " + element.textContent.slice(0, 40));
  }
  for (const figure of document_.querySelectorAll("svg"))
    if (!figure.getAttribute("aria-label") && !figure.querySelector("title") && figure.getAttribute("aria-hidden") !== "true")
      unlabelled.push(figure.outerHTML.slice(0, 120));
  const handlers = [...document_.querySelectorAll("*")].filter(
    element => [...element.attributes].some(each => each.name.startsWith("on"))).length;
  results[width] = {
    scroll: root.scrollWidth, client: root.clientWidth, small: [...small], unlabelled,
    scripts: document_.querySelectorAll("script, img, link, iframe, object, embed").length, handlers,
    sections: document_.querySelectorAll("section").length, text: document_.body.innerText.length};
}
let waiting = 0;
for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.style = "border:0;width:" + width + "px;height:900px";
  ++waiting;
  frame.onload = () => { look(frame, width); if (!--waiting) document.getElementById("out").textContent = JSON.stringify(results); };
  frame.src = "PAGE";
  document.body.appendChild(frame);
}
</script>"""


def chromium(profile, *arguments):
    """Runs the browser without network; returns its output and its console's messages."""
    command = [BROWSER, "--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}",
               "--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files", "--enable-logging=stderr", "--v=0",
               "--virtual-time-budget=8000", *(["--no-sandbox"] if os.geteuid() == 0 else []), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def check_page(page, profile):
    problems = []
    probe = page.with_suffix(".probe.html")
    probe.write_text(PROBE.replace("PAGE", page.name).replace("WIDTHS", json.dumps(WIDTHS)))
    document, console = chromium(profile, "--dump-dom", probe.as_uri())
    probe.unlink()
    problems += [f"console: {line}" for line in console]
    text = document.split('<pre id="out">')[1].split("</pre>")[0]
    if not text:
        return problems + ["the browser did not open the page"]
    for width, found in json.loads(text).items():
        if found["scroll"] > found["client"]:
            problems.append(f"{width} px: scrolls sideways: {found['scroll']} of {found['client']} px")
        problems += [f"{width} px: text below 11 px: {each}" for each in found["small"]]
        problems += [f"{width} px: a figure without a label: {each}" for each in found["unlabelled"]]
        if found["scripts"] or found["handlers"]:
            problems.append(f"{width} px: {found['scripts']} scripts or resources, {found['handlers']} event handlers")
        if found["sections"] < 7 or found["text"] < 500:
            problems.append(f"{width} px: {found['sections']} sections and {found['text']} characters")
    return problems


def check_policy(page, profile):
    """The policy in the page refuses a script and a resource that got into it nevertheless."""
    injected = page.with_suffix(".injected.html")
    injected.write_text(page.read_text().replace("</body>", '<script>document.title="run"</script><img src="https://example.org/x.png"></body>'))
    document, console = chromium(profile, "--dump-dom", injected.as_uri())
    injected.unlink()
    problems = [] if "<title>run</title>" not in document else ["an injected script ran"]
    refused = sum("Content Security Policy" in line for line in console)
    return problems if refused >= 2 else problems + [f"the browser refused {refused} of 2 injections: {console}"]


class Cells(html.parser.HTMLParser):
    """The words of a page's tables, summaries and headings, with their numbers of occurrences."""

    def __init__(self):
        super().__init__()
        self.depth, self.words, self.folded = 0, collections.Counter(), 0

    def handle_starttag(self, tag, attributes):
        self.depth += tag in ("td", "th", "summary", "h2", "h3")
        self.folded += tag == "details" and ("open", "") not in attributes

    def handle_endtag(self, tag):
        self.depth -= tag in ("td", "th", "summary", "h2", "h3")

    def handle_data(self, data):
        if self.depth:
            self.words.update(data.split())


def check_print(page, profile):
    """The words of the page are on its print, except long ones (hashes), which a narrow column breaks in the middle."""
    printed = page.with_suffix(".pdf")
    chromium(profile, f"--print-to-pdf={printed}", "--no-pdf-header-footer", page.as_uri())
    text = subprocess.run(["pdftotext", "-layout", printed, "-"], check=True, capture_output=True, text=True).stdout
    found, cells = collections.Counter(text.split()), Cells()
    cells.feed(page.read_text())
    if cells.folded < 5:
        return [f"the page has {cells.folded} folded parts: this check says nothing"]
    whole = "".join(text.split())  # a line may break inside a word
    return [f"printed {found[word]} times instead of {count}: {word}" for word, count in cells.words.items()
            if found[word] < count and whole.count(word) < count and len(word) <= 16]


def screenshot(page, profile, width, dark):
    picture = page.with_name(f"{page.stem}-{width}{'-dark' if dark else ''}.png")
    picture.unlink(missing_ok=True)
    chromium(profile, f"--window-size={width},2400", f"--screenshot={picture}",
             *(["--blink-settings=preferredColorScheme=0"] if dark else []), page.as_uri())
    return picture


def main():
    if BROWSER is None:
        print("SKIPPED: there is no chromium-headless-shell here (scripts/bootstrap.sh test installs it from Debian)")
        sys.exit(77)
    if shutil.which("pdftotext") is None:
        print("SKIPPED: there is no pdftotext here (scripts/bootstrap.sh test installs it from Debian's poppler-utils)")
        sys.exit(77)
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run([program, folder], check=True)
    failed = False
    with tempfile.TemporaryDirectory() as profile:
        pages = sorted(folder.glob("*.html"))
        for page in pages:
            problems = check_page(page, profile)
            if page.stem == "short":
                problems += check_policy(page, profile)
                problems += check_print(page, profile)
            for width, dark in ((400, False), (1280, False), (1280, True)):
                if screenshot(page, profile, width, dark).stat().st_size < 5000:
                    problems.append(f"the screenshot at {width} px is empty")
            print(f"{page.name}: {len(problems)} problems")
            print("".join(f"  {each}\n" for each in problems), end="")
            failed = failed or bool(problems)
        if len(pages) < 4:
            sys.exit(f"{len(pages)} pages")
    sys.exit(1 if failed else 0)


main()
