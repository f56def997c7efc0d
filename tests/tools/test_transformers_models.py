"""Models of transformers as they come: a last batch of one with a mask and labels, and a cache among the results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import aotpack
from aotpack_loader.errors import CaptureError, UnsupportedError

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def gpt2(use_cache: bool) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=17, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=1, eos_token_id=2, use_cache=use_cache,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def batch(rows: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 17, (rows, 6), generator=torch.Generator().manual_seed(rows))
    mask = torch.ones_like(ids)
    mask[-1, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def test_a_last_batch_of_one_trains(tmp_path: Path) -> None:
    out, rows = tmp_path / "gpt2.aotpack", torch.export.Dim("batch", min=1, max=8)
    sizes = {name: {0: rows} for name in batch(3)}
    aotpack.build(gpt2(use_cache=False), (), batch(3), out=out, targets=("portable",), methods=("train",), dynamic_shapes=sizes)
    eager, loaded = gpt2(use_cache=False), aotpack.load(out)
    for count in (4, 1, 2):
        losses = [model(**batch(count))["loss"] for model in (eager, loaded)]
        torch.testing.assert_close(losses[1], losses[0])
        for model, loss in zip((eager, loaded), losses, strict=True):
            model.zero_grad()
            loss.backward()
        found = {name: parameter.grad for name, parameter in loaded.named_parameters()}
        assert found.keys() == dict(eager.named_parameters()).keys()
        for name, parameter in eager.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad)


def test_a_cache_among_the_results_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises((CaptureError, UnsupportedError)) as caught:
        aotpack.build(gpt2(use_cache=True), (), batch(3), out=tmp_path / "m", targets=("portable",), methods=("train",))
    assert "use_cache=False" in caught.value.hint
    (problem,) = caught.value.problems
    assert "is a transformers.cache_utils.DynamicCache" in problem.message or "DynamicCache" in str(problem), problem
