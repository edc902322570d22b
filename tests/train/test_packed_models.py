"""The first rank unpacks a base model from differences; training equals training of the whole model."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import harness


@pytest.fixture
def setting(tmp_path):
    """A model, an updated model, and their differences."""
    reference_hash = harness.make_model(tmp_path / "reference")
    shutil.copytree(tmp_path / "reference", tmp_path / "whole")
    weights = load_file(tmp_path / "whole/model.safetensors")
    generator = torch.Generator().manual_seed(1)
    moved = {name: value + 1e-4 * torch.randn(value.shape, generator=generator).to(value.dtype) for name, value in weights.items()}
    save_file(moved, tmp_path / "whole/model.safetensors", metadata={"format": "pt"})
    whole_hash = harness.write_manifest(tmp_path / "whole")
    tool = [harness.BIN / "xffl_test_tool", "differences", tmp_path / "whole", tmp_path / "reference", tmp_path / "packed"]
    packed = dict(path=str(tmp_path / "packed"), sha256=harness.run(tool).stdout.strip(), reference_path=str(tmp_path / "reference"),
                  reference_sha256=reference_hash, failure_path="packed.failure")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(30))
    return tmp_path, whole_hash, packed, tokens


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_packed_model_trains_like_the_whole_model(setting, world_size):
    folder, whole_hash, packed, tokens = setting
    whole = harness.train(harness.make_job(folder / "a", folder / "whole", whole_hash, tokens), world_size)
    made = harness.train(harness.make_job(folder / "b", folder / "made", whole_hash, tokens, base_model_packed=packed), world_size)
    assert "model unpacked" in made.output[0]
    assert made.report["update_sha256"] == whole.report["update_sha256"]
    assert made.losses == whole.losses
    again = harness.train(harness.make_job(folder / "c", folder / "made", whole_hash, tokens, base_model_packed=packed), world_size)
    assert "model unpacked" not in again.output[0], "it is there"


def test_a_damaged_reference_ends_the_job_and_is_reported(setting):
    folder, whole_hash, packed, tokens = setting
    path = folder / "reference/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    job = harness.make_job(folder / "job", folder / "made", whole_hash, tokens, base_model_packed=packed)
    outcome = harness.train(job, 1, check=False)
    assert outcome.codes != [0] and outcome.report is None
    assert "reference" in (folder / "job/packed.failure").read_text()
    assert not (folder / "made").exists()


@pytest.mark.parametrize("damaged", ["model.safetensors", "manifest.json", None])
def test_a_damaged_whole_model_ends_the_job_and_is_reported(setting, damaged):
    folder, whole_hash, _, tokens = setting
    job = harness.make_job(folder / "job", folder / "whole", whole_hash, tokens)
    mark = folder / "job/model.failure"
    if damaged:
        path = folder / "whole" / damaged
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    else:
        shutil.rmtree(folder / "whole")
    outcome = harness.train(job, 1, check=False)
    assert outcome.codes != [0] and outcome.report is None
    assert str(folder / "whole") in mark.read_text()
