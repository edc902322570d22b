"""Masked documents of packed sequences against Hugging Face's model with a block-diagonal 4D mask and position_ids."""

import random

import pytest
import torch

import harness

LENGTH = 33  # tokens of a packed sequence


def make_documents(count=40, seed=3):
    generator = random.Random(seed)
    return [[generator.randrange(97) for _ in range(generator.choice((1, 2, 5, 9, 20, 50)))] for _ in range(count)]


def pack(documents):
    """Rows of LENGTH ids, and for each id the start of its document within the row."""
    ids = [i for document in documents for i in document]
    begins = [begin for begin, document in zip(offsets(documents), documents) for _ in document]
    rows = range(0, len(ids) - len(ids) % LENGTH, LENGTH)
    return [ids[r:r + LENGTH] for r in rows], [[max(b - r, 0) for b in begins[r:r + LENGTH]] for r in rows]


def offsets(documents):
    result = [0]
    for document in documents:
        result.append(result[-1] + len(document))
    return result


def inputs(rows, starts):
    ids, starts = torch.tensor(rows), torch.tensor(starts)
    at = torch.arange(LENGTH)
    labels = torch.where(starts == at, -100, ids)[:, 1:]
    ids, starts, at = ids[:, :-1], starts[:, :-1], at[:-1]
    sees = (at[None, None, :] <= at[None, :, None]) & (at[None, None, :] >= starts[:, :, None])
    mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min).unsqueeze(1)
    return dict(input_ids=ids, attention_mask=mask, position_ids=at - starts), labels


def hf_nll(model, arguments, labels):
    logits = model(**arguments).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none").view(labels.shape)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_evaluation(tmp_path, name):
    harness.make_model(tmp_path / "model", **harness.variants()[name])
    documents = make_documents()
    tokens = harness.write_tokens(tmp_path / "t.tokens", documents, packed=LENGTH)
    arguments, labels = inputs(*pack(documents))
    with torch.no_grad():
        nll = hf_nll(harness.load(tmp_path / "model"), arguments, labels)
    found = harness.evaluate(tmp_path / "model", tokens, "--document-mask")
    assert found["tokens"] == (labels != -100).sum()
    assert harness.relative(found["nll"], nll.sum().item() / found["tokens"]) < harness.TOLERANCE["nll"]
    for mine, theirs, count in zip(found["per_sequence"], nll.sum(1), (labels != -100).sum(1)):
        assert harness.relative(mine, theirs.item() / count.item()) < harness.TOLERANCE["sequence"]
    unmasked = harness.evaluate(tmp_path / "model", tokens)
    assert unmasked["tokens"] > found["tokens"]
    assert harness.relative(unmasked["nll"], found["nll"]) > 1e-4, "the mask should matter"


def test_the_validation_of_a_job_has_the_mask(tmp_path):
    base_hash = harness.make_model(tmp_path / "base")
    tokens = harness.write_tokens(tmp_path / "t.tokens", make_documents(), packed=LENGTH)
    job = harness.make_job(tmp_path / "job", tmp_path / "base", base_hash, tokens, [("it", tokens)], steps=0, document_mask=True)
    found = harness.train(job).report["validation"][0]
    masked = harness.evaluate(tmp_path / "base", tokens, "--document-mask")
    assert found["tokens"] == masked["tokens"] < harness.evaluate(tmp_path / "base", tokens)["tokens"]
    assert harness.relative(found["nll_before"], masked["nll"]) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("recompute", ["none", "cheap"])
def test_training(tmp_path, recompute):
    base_hash = harness.make_model(tmp_path / "base", **harness.variants()["grouped_queries_odd_head_dim"])
    documents = make_documents()
    tokens = harness.write_tokens(tmp_path / "t.tokens", documents, packed=LENGTH)
    arguments, labels = inputs(*pack(documents))
    model = harness.load(tmp_path / "base")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = hf_nll(model, arguments, labels).sum() / (labels != -100).sum()
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    job = harness.make_job(tmp_path / "job", tmp_path / "base", base_hash, tokens, steps=10, batch_size=len(labels),
                           micro_batch_size=5, document_mask=True, recompute=recompute)
    found = harness.train(job)
    assert losses[-1] < losses[0] - 0.1, "the reference itself should learn"
    for mine, theirs in zip(found.losses, losses, strict=True):
        assert harness.relative(mine, theirs) < harness.TOLERANCE["loss"]
