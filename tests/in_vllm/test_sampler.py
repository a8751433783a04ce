"""vLLM's own rejection sampler, on a CPU, with the plugin around it: what comes out is what the rules say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.worker_base import WorkerBase

from cactus import make_rule
from cactus.divergence import output_probs
from cactus.vllm import engine, register
from cactus.vllm.engine import UnknownEngineError
from cactus.vllm.options import SERVED

VOCAB = 7
DRAWS = 20_000
current_platform.register_triton_kernel_overrides()  # as a worker does


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The patches of a server and of a worker, taken off again."""
    for owner, name in (
        (SamplingParams, "verify"), (WorkerBase, "__init__"), (GPUModelRunner, "_sample"),
        (rejection_sampler, "rejection_sample"), (rejection_sampler, "expand_batch_to_tokens"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.delenv(engine.V2_SWITCH, raising=False)
    register()
    engine.patch_sampler()
    yield


def params(temperature: float = 1.0, **extra_args: Any) -> SamplingParams:
    return SamplingParams(temperature=temperature, extra_args=extra_args or None)


def sampled(
    draft_probs: Tensor | None, logits: Tensor, tokens: Tensor, requests: Sequence[SamplingParams], seed: int = 0
) -> Tensor:
    """One step of the patched model runner: every request drafted as many tokens; [requests, drafted + 1] of ids."""
    count = len(tokens) // len(requests)
    names = [f"request {index}" for index in range(len(requests))]
    metadata = _metadata(requests)
    runner = SimpleNamespace(
        requests={name: SimpleNamespace(sampling_params=own) for name, own in zip(names, requests, strict=True)},
        input_batch=SimpleNamespace(req_ids=names),
    )

    def sampler(self: Any, logits: Tensor, spec_decode_metadata: Any) -> Tensor:
        torch.manual_seed(seed)
        return rejection_sampler.rejection_sample(
            tokens.int(), [count] * len(requests), count,
            torch.arange(1, len(requests) + 1, dtype=torch.int32) * count,
            draft_probs, logits, torch.zeros(len(requests), 1, dtype=torch.int32), metadata,
        )  # fmt: skip

    return engine._naming(sampler)(runner, logits, object())


def _metadata(requests: Sequence[SamplingParams]) -> Any:
    temperature = torch.tensor([own.temperature for own in requests])
    return SimpleNamespace(
        all_greedy=bool((temperature == 0).all()), all_random=bool((temperature > 0).all()),
        temperature=temperature, generators={},
    )  # fmt: skip


def distributions(seed: int = 0) -> tuple[Tensor, Tensor]:
    """A draft's and a verifier's: [vocab], [vocab]; one token is ruled out."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(VOCAB, generator=generator).mul(1.5)
    logits[2] = -torch.inf
    return torch.randn(VOCAB, generator=generator).softmax(-1), logits.softmax(-1)


def first_tokens(rules: Sequence[SamplingParams], seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """The draft's and the verifier's distribution, and the first token of each request."""
    draft, verifier = distributions()
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(draft.expand(len(rules), -1), 1, generator=generator).squeeze(-1)
    logits = verifier.log().expand(len(rules), -1).contiguous()
    out = sampled(draft.expand(len(rules), -1).contiguous(), logits, tokens, rules)
    return draft, verifier, out[:, 0]


def assert_drawn_from(tokens: Tensor, expected: Tensor) -> None:
    """Within five standard deviations of every probability, and never a token of probability 0."""
    share = torch.bincount(tokens.long(), minlength=VOCAB) / len(tokens)
    spread = (expected * (1 - expected) / len(tokens)).sqrt()
    assert ((share - expected).abs() <= 5 * spread + 1e-9).all(), (share, expected)


@pytest.mark.parametrize("name", sorted(SERVED))
def test_what_is_drawn_is_the_rules_own_output(name: str) -> None:
    draft, verifier, tokens = first_tokens([params(cactus_method=name)] * DRAWS)
    assert_drawn_from(tokens, output_probs(make_rule(name), draft, verifier))


def test_requests_of_one_batch_keep_to_their_own_budgets() -> None:
    budgets = (0.0, 0.1, 1.0, 10.0)
    draft, verifier, tokens = first_tokens([params(cactus_delta=delta) for delta in budgets] * DRAWS)
    for index, delta in enumerate(budgets):
        expected = output_probs(make_rule("cactus", delta=delta), draft, verifier)
        assert_drawn_from(tokens[index :: len(budgets)], expected)


def block(requests: int, drafted: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    draft = torch.randn(requests * drafted, VOCAB, generator=generator).softmax(-1)
    logits = torch.randn(requests * drafted, VOCAB, generator=generator).mul(1.5)
    return draft, logits, torch.multinomial(draft, 1, generator=generator).squeeze(-1)


def test_without_budget_it_is_the_stock_sampler_row_for_row() -> None:
    draft, logits, tokens = block(300, 4)
    stock = sampled(draft, logits, tokens, [params()] * 300)
    assert torch.equal(sampled(draft, logits, tokens, [params(cactus_delta=0.0)] * 300), stock)
    assert torch.equal(sampled(draft, logits, tokens, [params(cactus_method="interp", cactus_alpha=0)] * 300), stock)
    assert not torch.equal(sampled(draft, logits, tokens, [params(cactus_delta=1.0)] * 300), stock)


def test_greedy_requests_are_untouched_beside_others() -> None:
    draft, logits, tokens = block(60, 4)
    requests = [params(0.0, cactus_delta=10.0), params(1.0, cactus_delta=10.0)] * 30
    mixed = sampled(draft, logits, tokens, requests)
    alone = sampled(draft, logits, tokens, [params(0.0)] * 60)
    assert torch.equal(mixed[::2], alone[::2])
    assert (mixed[1::2] >= 0).sum() > 1.5 * (sampled(draft, logits, tokens, [params()] * 60)[1::2] >= 0).sum()


def test_a_drafter_without_probabilities_is_judged_as_certain() -> None:
    draft, verifier = distributions()
    token = int(draft.argmax())
    certain = torch.nn.functional.one_hot(torch.tensor(token), VOCAB).float()
    logits = verifier.log().expand(DRAWS, -1).contiguous()
    drawn = sampled(None, logits, torch.full((DRAWS,), token), [params(cactus_delta=0.05)] * DRAWS)[:, 0]
    assert_drawn_from(drawn, output_probs(make_rule("cactus", delta=0.05), certain, verifier))


def test_a_placeholder_is_rejected_and_recovers_from_the_verifier() -> None:
    draft, verifier = distributions()
    rows = draft.expand(DRAWS, -1).contiguous(), verifier.log().expand(DRAWS, -1).contiguous()
    tokens = torch.full((DRAWS,), -1)
    stock = sampled(*rows, tokens, [params()] * DRAWS)
    assert torch.equal(sampled(*rows, tokens, [params(cactus_delta=1.0)] * DRAWS), stock)


def test_vllms_warm_up_is_left_alone() -> None:
    draft, logits, tokens = block(2, 3)
    out = rejection_sampler.rejection_sample(
        tokens.int(), [3, 3], 3, torch.tensor([3, 6], dtype=torch.int32), draft, logits,
        torch.zeros(2, 1, dtype=torch.int32), _metadata([params(), params()]),
    )  # fmt: skip
    assert out.shape == (2, 4)


def test_temperatures_reach_every_drafted_token() -> None:
    """vLLM 0.32.0 leaves them uninitialised on a CPU."""
    ends = torch.tensor([2, 3], dtype=torch.int32)
    expanded = rejection_sampler.expand_batch_to_tokens(torch.tensor([0.5, 0.0]), ends, 3, 0, 1)
    assert expanded.tolist() == [0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("extra_args", "speculates", "told"),
    [
        ({"cactus_delta": 11}, True, "delta must be a number between 0 and 10, got 11"),
        ({"cactus_method": "block"}, True, "cannot be served: it judges"),
        ({"cactus_delta": 1.0}, False, "this server does not speculate; start it with --speculative-config"),
        ({"cactus_delta": 1.0}, True, ""),
        ({"kv_transfer_params": None}, False, ""),
    ],
)
def test_bad_arguments_are_vllms_own_kind_of_error(extra_args: Any, speculates: bool, told: str) -> None:
    from vllm.exceptions import VLLMValidationError

    if not told:
        engine.check_arguments(extra_args, object() if speculates else None)
        return
    with pytest.raises(VLLMValidationError, match=told):
        engine.check_arguments(extra_args, object() if speculates else None)


def test_requests_are_checked_where_vllm_checks_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(engine, "check_arguments", lambda *given: seen.append(given))
    for name in dir(SamplingParams):
        if name.startswith("_validate_"):
            monkeypatch.setattr(SamplingParams, name, lambda *given: None)
    params(cactus_delta=1.0).verify(None, "config", None, None)
    assert seen == [({"cactus_delta": 1.0}, "config")]


def test_patching_again_changes_nothing() -> None:
    before = rejection_sampler.rejection_sample, GPUModelRunner._sample, SamplingParams.verify
    register()
    engine.patch_sampler()
    assert (rejection_sampler.rejection_sample, GPUModelRunner._sample, SamplingParams.verify) == before


def test_a_sampler_with_other_arguments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_sampler, "rejection_sample", lambda draft_token_ids, target_probs: None)
    with pytest.raises(UnknownEngineError, match=r"rejection_sample takes \(draft_token_ids, target_probs\), where"):
        engine.patch_sampler()


def test_a_step_that_goes_around_the_patch_is_not_silent() -> None:
    runner = SimpleNamespace(requests={}, input_batch=SimpleNamespace(req_ids=[]))
    with pytest.raises(UnknownEngineError, match="judged without the patched rejection_sample"):
        engine._naming(lambda self, logits, metadata: None)(runner, None, object())


def _config(**changes: Any) -> Any:
    speculative = {"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"} | changes
    return SimpleNamespace(
        use_v2_model_runner=speculative.pop("v2", False), speculative_config=SimpleNamespace(**speculative)
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"v2": True}, "VLLM_USE_V2_MODEL_RUNNER=0"), ({"rejection_sample_method": "synthetic"}, "only 'standard'")],
)
def test_an_engine_that_samples_otherwise_is_refused(changes: Any, told: str) -> None:
    engine.check_engine(_config())
    with pytest.raises(UnknownEngineError, match=told):
        engine.check_engine(_config(**changes))


def test_the_second_model_runner_is_refused_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine.V2_SWITCH, "1")
    with pytest.raises(UnknownEngineError, match="VLLM_USE_V2_MODEL_RUNNER is '1'"):
        register()


def test_a_bad_default_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACTUS_DELTA", "-3")
    with pytest.raises(ValueError, match="delta must be"):
        register()
