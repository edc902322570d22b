"""The public RO-Crate validator (PyPI: roc-validator) accepts `xffl export ro-crate`: every REQUIRED check of RO-Crate 1.1 and of
Process Run Crate 0.5, and the RECOMMENDED ones but those of NOT_MET, which docs/reference/exports.md explains.

The validator loads the JSON-LD context from w3id.org. The test answers these requests with the context of the PyPI package
rocrate (version 1.3, which has every term of 1.1), so that it needs no network; it refuses any other request.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import tempfile

import requests
import rdflib.plugins.shared.jsonld.context as jsonld_context
import rdflib.plugins.shared.jsonld.util as jsonld_util
from rocrate_validator import models, services

ROOT = pathlib.Path(__file__).parent.parent.parent
XFFL = pathlib.Path(os.environ["XFFL_BIN"]) / "xffl"
URL = "https://w3id.org/ro/crate/1.1/context"
PACKAGE = pathlib.Path(importlib.util.find_spec("rocrate").submodule_search_locations[0])
CONTEXT = json.loads((PACKAGE / "data/ro-crate.jsonld").read_text(encoding="utf-8"))
PROFILES = {"ro-crate-1.1": 40, "process-run-crate": 45}  # with the least number of checks

OF_RO_CRATE = {"ro-crate-1.1_22.2", "ro-crate-1.1_22.3", "ro-crate-1.1_31.2"}
NOT_MET = {"ro-crate-1.1": OF_RO_CRATE,
           "process-run-crate": OF_RO_CRATE | {f"process-run-crate-0.5_{number}" for number in ("3.2", "4.1", "5.1", "8.6")}}


def answer_without_network():
    from_source = jsonld_util.source_to_json

    def source_to_json(source, *args, **named):
        return (CONTEXT, None) if str(source).startswith(URL) else from_source(source, *args, **named)

    def request(_session, _method, url, **_named):
        if not url.startswith(URL):
            raise requests.ConnectionError(f"the test has no network: {url}")
        response = requests.Response()
        response.status_code, response.url = 200, url
        response._content = json.dumps(CONTEXT).encode()  # pylint: disable=protected-access
        response.headers["Content-Type"] = "application/ld+json"
        return response

    jsonld_context.source_to_json = jsonld_util.source_to_json = source_to_json
    requests.Session.request = request


def issues_of(crate, profile, severity):
    """(identifier of the check, text), also of the checks above the severity."""
    result = services.validate(services.ValidationSettings(
        rocrate_uri=str(crate), profile_identifier=profile, requirement_severity=severity, abort_on_first=False))
    assert len(result.executed_checks) >= PROFILES[profile], f"{profile}: {len(result.executed_checks)} checks"
    return [(issue.check.identifier, f"{issue.check.identifier}: {issue.message}") for issue in result.get_issues(severity)]


def problems(crate, profile):
    return [text for _, text in issues_of(crate, profile, models.Severity.REQUIRED)]


def export(folder, *options):
    crate = folder / f"crate{len(options)}"
    subprocess.run([XFFL, "export", "ro-crate", "-p", folder / "project", "--license", "CC-BY-4.0", *options, crate], check=True,
                   capture_output=True, timeout=60)
    return crate


def main():
    answer_without_network()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run(["tar", "-xzf", ROOT / "tests/golden/run/killed_in_round_2.tar.gz", "-C", folder], check=True, timeout=60)
        crate = export(folder)
        for profile in PROFILES:
            found = problems(crate, profile)
            assert not found, "\n".join(found)
            advice = issues_of(crate, profile, models.Severity.RECOMMENDED)
            assert {check for check, _ in advice} == NOT_MET[profile], "\n".join(sorted({text for _, text in advice}))
        # The validator does look: each of these crates is wrong.
        path = crate / "ro-crate-metadata.json"
        whole = json.loads(path.read_text(encoding="utf-8"))
        for profile, kind, key in (("ro-crate-1.1", "Dataset", "datePublished"), ("process-run-crate", "CreateAction", "instrument")):
            wrong = json.loads(json.dumps(whole))
            entity = next(entity for entity in wrong["@graph"] if entity["@type"] == kind)
            del entity[key]
            path.write_text(json.dumps(wrong), encoding="utf-8")
            assert problems(crate, profile), f"{kind} without {key} is accepted"
    print("ok")


if __name__ == "__main__":
    main()
