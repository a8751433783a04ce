"""Where the plugin takes hold of vLLM. The only module that imports it.

Three places: a request's arguments are checked where vLLM checks its own (`SamplingParams.verify`), so that a bad
one is an HTTP 400; every worker is looked at when it is made (`WorkerBase`); and in a worker the sampling step
(`GPUModelRunner._sample`) says which request each row belongs to, which the stock `rejection_sample`, called with
another target, is not told. Whatever is not as it was in the version this was written for is refused by name.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from cactus.acceptance import Rule
from cactus.errors import CactusError
from cactus.vllm.mend import mend_expansion
from cactus.vllm.options import own_arguments, requested_rule
from cactus.vllm.target import retarget

WRITTEN_FOR = "0.32.0"
V2_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"
SAMPLE = ("self", "logits", "spec_decode_metadata")
REJECTION_SAMPLE = (
    "draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs", "target_logits",
    "bonus_token_ids", "sampling_metadata", "synthetic_mode", "synthetic_conditional_rates", "use_fp64_gumbel",
)  # fmt: skip
SPECULATE = (
    'this server does not speculate; start it with --speculative-config \'{"method": "draft_model", "model": …, '
    '"num_speculative_tokens": 5, "draft_sample_method": "probabilistic"}\''
)

log = logging.getLogger("vllm.cactus")


class UnknownEngineError(RuntimeError):
    """vLLM is not as this plugin knows it, so that its patches would do nothing, or the wrong thing."""


@dataclass
class Step:
    """One sampling step: the rule of each request in the batch, None where it decodes greedily."""

    rules: list[Rule | None]
    reached: bool = False


_step: ContextVar[Step | None] = ContextVar("cactus_step", default=None)


def install() -> None:
    """Patch this process."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.worker_base import WorkerBase

    default = requested_rule(None)  # a bad default is said when the server starts
    # The second model runner samples elsewhere. The choice is read when the engine is configured, later than this.
    if os.environ.setdefault(V2_SWITCH, "0") not in ("0", "false", "False"):
        raise UnknownEngineError(f"{V2_SWITCH} is {os.environ[V2_SWITCH]!r}; with this plugin only 0 is allowed")
    if _replace(SamplingParams, "verify", _verifying, {"self", "speculative_config"}):
        log.info("cactus: requests without a rule of their own use %s %s", default.name, default.params or "")
    _replace(WorkerBase, "__init__", _looking, {"self", "vllm_config"})


def _replace(owner: Any, name: str, make: Callable[[Any], Any], needs: Iterable[str]) -> bool:
    """Put a wrapper around `owner.name`, once. False if it was there."""
    stock = getattr(owner, name, None)
    if hasattr(stock, "cactus_stock"):
        return False
    names = tuple(inspect.signature(stock).parameters) if callable(stock) else ()
    if not set(needs) <= set(names):
        raise _unknown(f"{owner.__name__}.{name}", names, needs)
    wrapper = wraps(stock)(make(stock))  # type: ignore[arg-type]
    wrapper.cactus_stock = stock  # type: ignore[attr-defined]
    setattr(owner, name, wrapper)
    return True


def _unknown(what: str, found: Iterable[str], known: Iterable[str]) -> UnknownEngineError:
    return UnknownEngineError(
        f"{what} takes ({', '.join(found)}), where this plugin, written for vLLM {WRITTEN_FOR}, knows "
        f"({', '.join(known)}): install that version, or start without the plugin (VLLM_PLUGINS='')"
    )


def _verifying(stock: Callable[..., None]) -> Callable[..., None]:
    """A request's arguments, checked with vLLM's own."""
    signature = inspect.signature(stock)

    def verify(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        check_arguments(self.extra_args, signature.bind(self, *args, **kwargs).arguments["speculative_config"])

    return verify


def check_arguments(extra_args: dict[str, Any] | None, speculative_config: Any) -> None:
    """vLLM's error for a bad request, which its server answers with 400, if an argument cannot be met."""
    from vllm.exceptions import VLLMValidationError

    given = own_arguments(extra_args)
    if not given:
        return
    try:
        requested_rule(extra_args)
        if speculative_config is None:
            raise CactusError(SPECULATE)
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter="vllm_xargs", value=given) from None


def _looking(stock: Callable[..., None]) -> Callable[..., None]:
    """A worker is looked at, and its sampler patched, before it has a model."""
    signature = inspect.signature(stock)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        config = signature.bind(self, *args, **kwargs).arguments["vllm_config"]
        if config.speculative_config is not None:
            check_engine(config)
            patch_sampler()

    return init


def check_engine(config: Any) -> None:
    """`UnknownEngineError` where the engine would sample elsewhere or otherwise."""
    if config.use_v2_model_runner:
        raise UnknownEngineError(f"this configuration needs Model Runner V2, which is not patched; {V2_SWITCH}=0 is")
    speculative = config.speculative_config
    if speculative.rejection_sample_method != "standard":
        raise UnknownEngineError(
            f"rejection_sample_method is {speculative.rejection_sample_method!r}; only 'standard' is allowed"
        )
    if speculative.draft_sample_method != "probabilistic":
        log.warning(
            "cactus: draft_sample_method is %r, so a drafted token counts as certain (p = 1) and fewer are accepted; "
            "'probabilistic' draws it",
            speculative.draft_sample_method,
        )


def patch_sampler() -> None:
    """Patch the sampling step of the model runner."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    stock = rejection_sampler.rejection_sample
    names = tuple(inspect.signature(stock).parameters)
    if not hasattr(stock, "cactus_stock") and names != REJECTION_SAMPLE:
        raise _unknown("rejection_sample", names, REJECTION_SAMPLE)
    _replace(rejection_sampler, "rejection_sample", _retargeting, REJECTION_SAMPLE)
    _replace(GPUModelRunner, "_sample", _naming, SAMPLE)
    if current_platform.is_cpu():
        mend_expansion(rejection_sampler)


def _naming(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Which request each row belongs to, for as long as a step is sampled."""

    def sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        if spec_decode_metadata is None:
            return stock(self, logits, spec_decode_metadata)
        step = Step([rule_of(self.requests[name].sampling_params) for name in self.input_batch.req_ids])
        token = _step.set(step)
        try:
            output = stock(self, logits, spec_decode_metadata)
        finally:
            _step.reset(token)
        if not step.reached:
            raise UnknownEngineError("drafted tokens were judged without the patched rejection_sample")
        return output

    return sample


def rule_of(params: Any) -> Rule | None:
    """The rule of a request; None where it decodes greedily, which no rule changes."""
    from vllm.sampling_params import SamplingType

    greedy = params is None or params.sampling_type == SamplingType.GREEDY
    return None if greedy else requested_rule(params.extra_args)


def _retargeting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The stock sampler with another target. Outside a step (vLLM's own warm-up) it is the stock sampler."""
    signature = inspect.signature(stock)

    def rejection_sample(*args: Any, **kwargs: Any) -> Any:
        step = _step.get()
        if step is None:
            return stock(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        step.reached = True
        counts = call.arguments["num_draft_tokens"]
        rules = [rule for rule, count in zip(step.rules, counts, strict=True) for _ in range(count)]
        call.arguments["target_logits"] = retarget(
            call.arguments["target_logits"], call.arguments["draft_probs"], call.arguments["draft_token_ids"], rules
        )
        return stock(*call.args, **call.kwargs)

    return rejection_sample
