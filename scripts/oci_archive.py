"""Writes an OCI image of one layer as a tar archive (oci-archive:), the same bytes each time.

    oci_archive.py LAYER.tar.gz OUTPUT.tar --tag 0.1.0 --arch amd64 [--command WORD...] [--label NAME=VALUE...]

The layer is a root file system. Source of the format: https://github.com/opencontainers/image-spec, version 1.0 (image layout,
manifest, configuration). podman, skopeo, umoci, Apptainer and Enroot read it.
"""
import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import sys
import tarfile
import zlib

MEDIA = "application/vnd.oci.image."
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = ("amd64", "arm64")


def hash_of(file):
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return "sha256:" + digest.hexdigest()


def encode(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def descriptor(kind, digest, size, **more):
    return {"mediaType": MEDIA + kind, "digest": digest, "size": size, **more}


def image_documents(layer, tag, arch, command, labels):
    """(index, [(digest, bytes)] of manifest and configuration, digest of the layer)"""
    with open(layer, "rb") as file:
        layer_digest = hash_of(file)
    with gzip.open(layer) as file:
        content_digest = hash_of(file)
    configuration = encode({
        "architecture": arch, "os": "linux", "config": {"Env": ["PATH=" + PATH], "Cmd": command, "WorkingDir": "/", "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [content_digest]}, "history": [{"created_by": "scripts/oci_archive.py"}]})
    configuration_digest = hash_of(io.BytesIO(configuration))
    manifest = encode({
        "schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json",
        "config": descriptor("config.v1+json", configuration_digest, len(configuration)),
        "layers": [descriptor("layer.v1.tar+gzip", layer_digest, os.path.getsize(layer))]})
    manifest_digest = hash_of(io.BytesIO(manifest))
    index = encode({"schemaVersion": 2, "manifests": [
        descriptor("manifest.v1+json", manifest_digest, len(manifest), platform={"architecture": arch, "os": "linux"},
                   annotations={"org.opencontainers.image.ref.name": tag})]})
    return index, [(manifest_digest, manifest), (configuration_digest, configuration)], layer_digest


def add(archive, name, size=None, file=None):
    entry = tarfile.TarInfo(name)
    if size is None:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    else:
        entry.size, entry.mode = size, 0o644
    archive.addfile(entry, file)


def write_archive(layer, output, tag, arch, command, labels):
    index, blobs, layer_digest = image_documents(layer, tag, arch, command, labels)
    blob = lambda digest: "blobs/" + digest.replace(":", "/")
    unfinished = output.with_name(output.name + ".part")
    with tarfile.open(unfinished, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in (("oci-layout", encode({"imageLayoutVersion": "1.0.0"})), ("index.json", index)):
            add(archive, name, len(content), io.BytesIO(content))
        add(archive, "blobs")
        add(archive, "blobs/sha256")
        for digest, content in blobs:
            add(archive, blob(digest), len(content), io.BytesIO(content))
        with open(layer, "rb") as file:
            add(archive, blob(layer_digest), os.path.getsize(layer), file)
    unfinished.replace(output)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layer", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--arch", required=True, choices=ARCHITECTURES)
    parser.add_argument("--command", nargs="+", default=["/bin/sh"])
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    if not re.fullmatch(r"[\w][\w.-]{0,127}", arguments.tag, re.ASCII):
        parser.error(f"the tag {arguments.tag!r} is none of OCI: expected letters, digits, '_', '.', '-', at most 128")
    if wrong := [label for label in arguments.label if not re.fullmatch(r"[\w.-]+=[^\n]*", label)]:
        parser.error(f"the label {wrong[0]!r} is not NAME=VALUE")
    labels = dict(label.split("=", 1) for label in arguments.label)
    try:
        write_archive(arguments.layer, arguments.output, arguments.tag, arguments.arch, arguments.command, labels)
    except (OSError, EOFError, zlib.error) as error:
        sys.exit(f"oci_archive: cannot make an image of {arguments.layer}: {error}")


if __name__ == "__main__":
    main()
