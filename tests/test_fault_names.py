"""Every kind of fault known in this field has tests named after it: `test_fault_<number>_…`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cactus import SamplingParams, decode, load_pair, make_rule
from cactus.compare import partings

KINDS = {
    1: "a ratio of other distributions than were drawn from",
    2: "a deterministic drafter that enters the test with its softmax",
    3: "a recovery that is not drawn from the residual",
    4: "truncation of one model, or of the bonus token, alone",
    5: "one uniform for all positions; a uniform of 0; disjoint supports",
    6: "temperature 0 that accepts another token than the argmax",
    7: "drawing in one precision and testing in another; a token of probability 0",
    8: "a repetition penalty that counts rejected drafts, or is lost",
    9: "tokens behind an end of text; a rejected end of text; several of them",
    10: "a stop string over tokens and rounds; text cut, records not",
    11: "more than max_new_tokens; a wrong stop reason",
    12: "prompts empty, near the context's end, or with special tokens",
    13: "caches that are off by one",
    14: "greedy speculative decoding that differs from greedy decoding",
    15: "rewinding sliding windows; state that cannot be rewound",
    16: "settings that leak into the next run",
    17: "vocabularies of unequal sizes or orders",
    18: "characters split over tokens or rounds",
    19: "no chat template; one that refuses a system prompt; markup in the text",
    20: "wrong counts and denominators",
    21: "time in the tokens per second that is not theirs",
    22: "near-ties in low precision",
    23: "runs and places that outlive their visitor",
    24: "two visitors that mix",
    25: "memory that grows; a pair that cannot fit",
    26: "weights that cannot be had",
    27: "NaN and infinite logits, overflow, lack of memory",
    28: "work or traffic that grows with the square of the text",
    29: "hostile text, settings and files",
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind}: {KINDS[kind]}")
def test_every_kind_of_fault_is_guarded(kind):
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert re.search(rf"^def test_fault_{kind}_\w+\(", tests, re.MULTILINE)


def test_fault_22_in_bfloat16_texts_part_at_near_ties_alone_and_it_is_said():
    """Passes over one and over six tokens round differently: there, and nowhere else, may greedy texts part."""
    pair, greedy = load_pair("pocket", dtype="bfloat16"), SamplingParams(temperature=0.0)
    for prompt in ("What is rain?", "Why is the sky blue?"):  # the first parts on CPUs that compute in bfloat16
        runs = [decode(pair, prompt, rule, None, greedy, 40, 0) for rule in (None, make_rule("sps"))]
        for run in runs:
            list(run)
        (parting,) = partings([run.trace for run in runs])
        if not parting.same:
            shared = [token.id for token in runs[0].trace.tokens[: parting.tokens]]
            best = pair.new_verifier().feed(pair.codec.encode_prompt(prompt) + shared).logits[-1].topk(2).values
            assert float(best[0] - best[1]) <= 2**-6 * float(best.abs().max())
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert "In bfloat16 a greedy run can part from the verifier alone" in readme
