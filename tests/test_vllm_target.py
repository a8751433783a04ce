"""The plugin's own mathematics, without vLLM: which rule a request asks for, and the target that makes it so."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from cactus import RULES, make_rule
from cactus.vllm.mend import expand_batch_to_tokens
from cactus.vllm.options import PARAMETERS, SERVED, requested_rule
from cactus.vllm.target import retarget

VOCAB = 12


def rows(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draft probabilities, verifier's logits, drafted tokens."""
    generator = torch.Generator().manual_seed(count)
    draft = torch.randn(count, VOCAB, generator=generator).mul(2).softmax(-1)
    logits = torch.randn(count, VOCAB, generator=generator).mul(2)
    logits[:, 3] = -torch.inf  # ruled out by truncation
    return draft, logits, torch.multinomial(draft, 1, generator=generator).squeeze(-1)


def test_the_rules_that_are_served_are_those_that_say_so() -> None:
    assert set(RULES) - set(SERVED) == {"cactus_budget", "block"}
    assert set(PARAMETERS) == {"delta", "divergence", "floor", "epsilon", "alpha", "k", "lenience"}


@pytest.mark.parametrize("name", sorted(SERVED))
def test_speculative_sampling_against_h_is_the_rule(name: str) -> None:
    """That is what `beyond_sampling` being empty claims: the same verdicts, the same recovery."""
    rule = make_rule(name)
    draft, logits, tokens = rows(40)
    verifier = logits.softmax(-1)
    aim = rule.adjusted_rows(draft, verifier, tokens).double()
    ratio = (aim.gather(-1, tokens[:, None])[:, 0] / draft.gather(-1, tokens[:, None])[:, 0]).clamp(max=1)
    torch.testing.assert_close(ratio.float(), rule.accept_probs(draft, verifier, tokens), atol=2e-6, rtol=1e-5)
    residual = (aim - draft).clamp(min=0)
    for row in (ratio < 1 - 1e-4).nonzero().flatten().tolist():
        expected = rule.recovery_probs(draft[row], verifier[row], int(tokens[row]))
        torch.testing.assert_close((residual[row] / residual[row].sum()).float(), expected, atol=2e-5, rtol=1e-3)


def test_against_its_h_block_verification_would_be_another_rule() -> None:
    rule = make_rule("block")
    draft, logits, tokens = rows(4)
    verifier = logits.softmax(-1)
    against_h = make_rule("sps").accept_probs(draft, verifier, tokens)  # its h is q
    assert (against_h - rule.accept_probs(draft, verifier, tokens)).abs().max() > 1e-3


def test_each_row_gets_the_target_of_its_own_rule() -> None:
    draft, logits, tokens = rows(6)
    rules = [make_rule("cactus", delta=1.0), None, make_rule("interp", alpha=0.5), make_rule("cactus", delta=0.1)]
    rules += [make_rule("sps"), make_rule("cactus", delta=1.0)]
    got = retarget(logits, draft, tokens, rules)
    for row, rule in enumerate(rules):
        if rule is None or rule.lossless:
            assert torch.equal(got[row], logits[row])
            continue
        expected = rule.adjusted_probs(draft[row], logits[row].softmax(-1), int(tokens[row]))
        torch.testing.assert_close(got[row].softmax(-1), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rule", [make_rule("sps"), make_rule("cactus", delta=0.0), None])
def test_what_changes_nothing_keeps_the_logits_bit_by_bit(rule: Any) -> None:
    draft, logits, tokens = rows(9)
    assert torch.equal(retarget(logits, draft, tokens, [rule] * 9), logits)


def test_the_logits_given_are_not_written_to() -> None:
    draft, logits, tokens = rows(5)
    before = logits.clone()
    retarget(logits, draft, tokens, [make_rule("cactus", delta=2.0)] * 5)
    retarget(logits, draft, tokens, [make_rule("cactus", delta=2.0), None] * 2 + [None])
    assert torch.equal(logits, before)


def test_a_placeholder_lifts_nothing() -> None:
    draft, logits, tokens = rows(4)
    tokens[2] = -1
    got = retarget(logits, draft, tokens, [make_rule("cactus", delta=1.0)] * 4)
    assert torch.equal(got[2], logits[2]) and not torch.equal(got[1], logits[1])


def test_a_draft_without_probabilities_was_certain() -> None:
    _, logits, tokens = rows(4)
    certain = torch.nn.functional.one_hot(tokens, VOCAB).float()
    for rule in (make_rule("interp", alpha=0.4), make_rule("cactus", delta=0.3)):
        assert torch.equal(retarget(logits, None, tokens, [rule] * 4), retarget(logits, certain, tokens, [rule] * 4))


@pytest.mark.parametrize(
    ("asked", "environ", "expected"),
    [
        (None, {}, ("sps", {})),
        ({"kv_transfer_params": {}}, {}, ("sps", {})),
        ({"cactus_delta": 0.5}, {}, ("cactus", {"delta": 0.5})),
        ({"cactus_delta": "0.5"}, {}, ("cactus", {"delta": 0.5})),
        ({"cactus_method": "interp", "cactus_alpha": 0.2}, {}, ("interp", {"alpha": 0.2})),
        ({}, {"CACTUS_DELTA": "2"}, ("cactus", {"delta": 2.0})),
        ({"cactus_delta": 0}, {"CACTUS_DELTA": "2"}, ("cactus", {"delta": 0.0})),
        ({"cactus_method": "sps"}, {"CACTUS_DELTA": "2"}, ("sps", {})),
        ({"cactus_method": "interp"}, {"CACTUS_METHOD": "cactus", "CACTUS_DELTA": "2"}, ("interp", {"alpha": 0.3})),
        ({"cactus_delta": 1}, {"CACTUS_METHOD": "cactus_exact", "CACTUS_DIVERGENCE": "tv"},
         ("cactus_exact", {"delta": 1.0, "divergence": "tv"})),
        ({}, {"CACTUS_METHOD": "", "CACTUS_DELTA": " "}, ("sps", {})),
    ],
)  # fmt: skip
def test_a_request_then_the_environment_say_which_rule(asked: Any, environ: Any, expected: Any) -> None:
    rule = requested_rule(asked, environ)
    assert (rule.name, dict(rule.params)) == expected


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"cactus_delta": -1}, "delta must be a number between 0 and 10, got -1"),
        ({"cactus_delta": [1]}, "delta must be a number between 0 and 10"),
        ({"cactus_delta": "much"}, "delta must be a number between 0 and 10"),
        ({"cactus_delta": True}, "delta must be a number between 0 and 10"),
        ({"cactus_alpha": 0.1}, "cactus has no parameter 'alpha'; it takes delta"),
        ({"cactus_method": "x"}, "cactus_method is 'x'; sps, cactus, .* are allowed"),
        ({"cactus_method": 3}, "cactus_method is 3; sps"),
        ({"cactus_method": ["cactus"]}, "cactus_method is .'cactus'.; sps"),
        ({"cactus_method": "block"}, "'block' cannot be served: it judges the drafted tokens of a round together"),
        ({"cactus_method": "cactus_budget"}, "cannot be served: what it has spent has to be carried"),
    ],
)
def test_what_cannot_be_met_is_refused_by_name(asked: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        requested_rule(asked, {})


def test_expansion_gives_each_token_what_its_request_has() -> None:
    ends = torch.tensor([0, 3, 4], dtype=torch.int32)  # the first request drafted nothing
    assert expand_batch_to_tokens(torch.tensor([9.0, 0.0, 0.7]), ends, 4, 0, 1).tolist() == pytest.approx(
        [1, 1, 1, 0.7]
    )
    top_k = expand_batch_to_tokens(torch.tensor([1, 2, 3], dtype=torch.int32), ends, 4)
    assert top_k.tolist() == [2, 2, 2, 3] and top_k.dtype == torch.int32


def test_the_plugin_needs_torch_and_the_rules_alone() -> None:
    """It runs beside another transformers than the page's."""
    heavy = ("transformers", "gradio", "plotly", "pydantic", "accelerate", "vllm", "huggingface_hub")
    code = (
        "import sys, cactus.vllm, cactus.vllm.engine, cactus.vllm.options, cactus.vllm.target\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
