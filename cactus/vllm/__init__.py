"""Cactus inside vLLM: the rules that are speculative sampling against their own h, by changing the target alone.

    vllm serve MODEL --speculative-config '{"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 5,
                                            "draft_sample_method": "probabilistic"}'

loads `register` through the entry point `vllm.general_plugins` in every process. A request chooses its rule by
`vllm_xargs` (`SamplingParams.extra_args`): `{"cactus_delta": 1.0}`, or `{"cactus_method": "interp", "cactus_alpha":
0.2}`; the environment (`CACTUS_METHOD`, `CACTUS_DELTA`, …) gives the rule of requests that say nothing. Without
either, nothing changes. Needs torch beside vLLM, and of this package only the rules: no transformers, no page.
"""

from __future__ import annotations


def register() -> None:
    """Patch vLLM in this process; again and again does no harm. An engine that is not known is refused."""
    from cactus.vllm.engine import install

    install()
