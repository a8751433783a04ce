"""Exact enumeration over small vocabularies in float64: the oracle of the rule tests.

`accept` and `recovery` restate design formulas in plain Python, token by token, sharing no
code with the package. `brute_output` and `emitted_law` sum over everything a step or a round
can do with the rule under test.
"""

import itertools
import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from cactus.acceptance import Rule, make_rule

LOSSLESS = ("sps", "block")
BLOCKWISE = ("cactus_budget", "block")  # a token's verdict depends on those before it
H_RULES = ("sps", "cactus", "cactus_exact", "cactus_adaptive", "cactus_budget", "interp")

# Every rule at least twice, at settings that accept some tokens and reject others.
SETTINGS = [
    ("sps", {}),
    ("cactus", {"delta": 0.02}),
    ("cactus", {"delta": 1.0}),
    ("cactus_exact", {"delta": 0.05, "divergence": "kl"}),
    ("cactus_exact", {"delta": 0.5, "divergence": "kl"}),
    ("cactus_exact", {"delta": 0.1, "divergence": "reverse_kl"}),
    ("cactus_exact", {"delta": 0.1, "divergence": "chi2"}),
    ("cactus_exact", {"delta": 0.05, "divergence": "tv"}),
    ("cactus_exact", {"delta": 0.02, "divergence": "hellinger"}),
    ("cactus_exact", {"delta": 0.02, "divergence": "js"}),
    ("cactus_adaptive", {"delta": 0.3, "floor": 0.0}),
    ("cactus_adaptive", {"delta": 0.3, "floor": 0.6}),
    ("cactus_budget", {"delta": 0.5, "budget": 0.01}),
    ("cactus_budget", {"delta": 0.1, "budget": 10.0}),
    ("tas", {"epsilon": 0.09, "alpha": 0.3}),
    ("tas", {"epsilon": 0.4, "alpha": 0.9}),
    ("mentored", {"delta": 0.01}),
    ("mentored", {"delta": 0.3}),
    ("interp", {"alpha": 0.3}),
    ("interp", {"alpha": 1.0}),
    ("topk", {"k": 1}),
    ("topk", {"k": 2}),
    ("lenience", {"lenience": 0.3}),
    ("lenience", {"lenience": 1.0}),
    ("block", {}),
]
SETTING_IDS = ["-".join([name, *map(str, params.values())]) for name, params in SETTINGS]


def rows(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Hand-picked (draft, verifier) rows: the corners of every formula.
CORNERS = {
    "plain": (rows(0.2, 0.5, 0.3), rows(0.5, 0.3, 0.2)),
    "equal": (rows(0.5, 0.3, 0.2), rows(0.5, 0.3, 0.2)),
    "disjoint": (rows(0.6, 0.4, 0.0, 0.0), rows(0.0, 0.0, 0.7, 0.3)),
    "overlap": (rows(0.6, 0.4, 0.0), rows(0.0, 0.7, 0.3)),
    "draft one-hot": (rows(0.0, 1.0, 0.0), rows(0.5, 0.3, 0.2)),
    "draft one-hot outside": (rows(1.0, 0.0, 0.0), rows(0.0, 0.3, 0.7)),
    "verifier one-hot": (rows(0.2, 0.5, 0.3), rows(1.0, 0.0, 0.0)),
    "same one-hots": (rows(0.0, 1.0, 0.0), rows(0.0, 1.0, 0.0)),
    "different one-hots": (rows(0.0, 1.0, 0.0), rows(1.0, 0.0, 0.0)),
    "uniform": (rows(0.25, 0.25, 0.25, 0.25), rows(0.25, 0.25, 0.25, 0.25)),
    "ties": (rows(0.4, 0.4, 0.1, 0.1), rows(0.1, 0.1, 0.4, 0.4)),
    "two tokens": (rows(0.9, 0.1), rows(0.2, 0.8)),
    "nearly certain": (rows(0.5, 0.5), rows(1 - 1e-12, 1e-12)),
    "tiny": (rows(1e-9, 1 - 1e-9), rows(1 - 1e-7, 1e-7)),
}


def random_row(vocab: int, generator: torch.Generator, spread: float = 2.0) -> Tensor:
    logits = torch.randn(vocab, generator=generator, dtype=torch.float64) * spread
    return logits.softmax(-1)


def random_pairs(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Seeded (draft, verifier) rows of 2–8 tokens, a third of them with zeros."""
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for i in range(count):
        vocab = int(torch.randint(2, 9, (1,), generator=generator))
        pair = [random_row(vocab, generator) for _ in range(2)]
        if i % 3 == 0:
            keep = torch.rand(2, vocab, generator=generator) > 0.4
            keep[:, int(torch.randint(vocab, (1,), generator=generator))] = True
            pair = [row * kept / (row * kept).sum() for row, kept in zip(pair, keep, strict=True)]
        pairs.append((pair[0], pair[1]))
    return pairs


@st.composite
def pair_strategy(draw) -> tuple[Tensor, Tensor]:
    """(draft, verifier) rows of 2–8 tokens, zeros and repeated values included."""
    vocab = draw(st.integers(2, 8))
    weight = st.one_of(st.sampled_from([0.0, 0.1, 1.0]), st.floats(1e-6, 1.0))
    pair = []
    for _ in range(2):
        weights = draw(st.lists(weight, min_size=vocab, max_size=vocab).filter(any))
        pair.append(rows(*weights) / sum(weights))
    return pair[0], pair[1]


# --- the formulas of the rules, in plain Python ------------------------------------------------


def binary(divergence: str, prob: float, ref: float) -> float:
    """D of (prob, 1−prob) from (ref, 1−ref), from the textbook sums."""
    total = 0.0
    for a, b in ((prob, ref), (1 - prob, 1 - ref)):
        middle = (a + b) / 2
        total += {
            "kl": lambda a=a, b=b: _log_term(a, b),
            "reverse_kl": lambda a=a, b=b: _log_term(b, a),
            "chi2": lambda a=a, b=b: 0.0 if a == b else (math.inf if b == 0 else (a - b) ** 2 / b),
            "tv": lambda a=a, b=b: abs(a - b) / 2,
            "hellinger": lambda a=a, b=b: (math.sqrt(a) - math.sqrt(b)) ** 2 / 2,
            "js": lambda a=a, b=b, m=middle: (_log_term(a, m) + _log_term(b, m)) / 2,
        }[divergence]()
    return total


def _log_term(a: float, b: float) -> float:
    if a == 0:
        return 0.0
    return math.inf if b == 0 else a * math.log(a / b)


def largest_within(divergence: str, verifier_prob: float, delta: float) -> float:
    """γ* by plain bisection on one number."""
    if delta == 0:
        return verifier_prob
    if binary(divergence, 1.0, verifier_prob) <= delta:
        return 1.0
    low, high = verifier_prob, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if binary(divergence, middle, verifier_prob) <= delta:
            low = middle
        else:
            high = middle
    return low


def taylor(verifier_prob: float, delta: float) -> float:
    return min(1.0, verifier_prob + math.sqrt(2 * delta * verifier_prob * (1 - verifier_prob)))


def entropy(probs: Tensor) -> float:
    return -sum(x * math.log(x) for x in probs.tolist() if x > 0)


def lifted(rule: Rule, verifier_probs: Tensor, token: int) -> float:
    """γ of the lift rules."""
    prob, params = verifier_probs[token].item(), rule.params
    if rule.name == "sps":
        return prob
    if rule.name == "cactus_exact":
        return largest_within(params["divergence"], prob, params["delta"])
    if rule.name == "cactus_adaptive":
        share = 1 - entropy(verifier_probs) / math.log(len(verifier_probs))
        return taylor(prob, params["delta"] * max(params["floor"], share))
    boosted = taylor(prob, params["delta"])
    if rule.name == "cactus_budget" and binary("kl", boosted, prob) > params["budget"]:
        return largest_within("kl", prob, params["budget"])
    return boosted


def adjusted(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor, token: int) -> Tensor:
    """h of the h-rules."""
    if rule.name == "interp":
        alpha = rule.params["alpha"]
        return alpha * draft_probs + (1 - alpha) * verifier_probs
    boosted, prob = lifted(rule, verifier_probs, token), verifier_probs[token].item()
    rest = (1 - boosted) / (1 - prob) if prob < 1 else 0.0
    h = verifier_probs * rest
    h[token] = boosted
    return h


def accept(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor, token: int) -> float:
    draft_prob, verifier_prob = draft_probs[token].item(), verifier_probs[token].item()
    if rule.name in H_RULES:
        aim = adjusted(rule, draft_probs, verifier_probs, token)[token].item()
        return min(1.0, aim / draft_prob)
    if rule.name == "block":
        return min(1.0, verifier_prob / draft_prob)
    if rule.name == "lenience":
        return min(1.0, verifier_prob / (rule.params["lenience"] * draft_prob))
    if rule.name == "tas":
        typical = rule.params["alpha"] * math.exp(-entropy(verifier_probs))
        return float(verifier_prob > min(rule.params["epsilon"], typical))
    assert rule.name == "topk"
    last = sorted(verifier_probs.tolist(), reverse=True)[: rule.params["k"]][-1]
    return float(verifier_prob >= last and verifier_prob > 0)


def recovery(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor, token: int) -> Tensor:
    if rule.name == "tas":
        best = torch.zeros_like(verifier_probs)
        best[int(verifier_probs.argmax())] = 1.0
        return best
    if rule.name in H_RULES:
        aim = adjusted(rule, draft_probs, verifier_probs, token)
    elif rule.name == "topk":
        aim = rows(*(accept(rule, draft_probs, verifier_probs, x) for x in range(len(draft_probs))))
    else:
        aim = verifier_probs
    residual = (aim - draft_probs).clamp(min=0)
    return residual / residual.sum() if residual.sum() > 0 else aim / aim.sum()


# --- sums over all that a step or a round can do -----------------------------------------------


def accept_probs(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
    """The accept probability of every token, each judged as the first of its own block."""
    tokens = torch.arange(len(draft_probs))
    p, q = (row.expand(len(tokens), -1) for row in (draft_probs, verifier_probs))
    if rule.name not in BLOCKWISE:
        return rule.accept_probs(p, q, tokens)
    ones = [slice(token, token + 1) for token in tokens]
    return torch.cat([rule.accept_probs(p[one], q[one], tokens[one]) for one in ones])


def brute_output(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
    """out(x) = p(x)·a(x) + Σ_n p(n)(1 − a(n))·g_n(x), term by term."""
    chances = accept_probs(rule, draft_probs, verifier_probs)
    output = draft_probs * chances
    for token in range(len(draft_probs)):
        rejected = draft_probs[token] * (1 - chances[token])
        if rejected > 0:
            output = output + rejected * rule.recovery_probs(draft_probs, verifier_probs, token)
    return output


class Table:
    """Next-token distributions that depend on everything before: prefix -> [vocab].

    A `sparse` table has one token in three ruled out.
    """

    def __init__(self, vocab: int, length: int, seed: int, sparse: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        prefixes = (prefix for n in range(length) for prefix in itertools.product(range(vocab), repeat=n))
        self.vocab = vocab
        self.of = {prefix: random_row(vocab, generator, 1.5) for prefix in prefixes}
        if sparse:
            for row in self.of.values():
                row[int(torch.randint(vocab, (1,), generator=generator))] = 0.0
                row /= row.sum()

    def block(self, tokens: tuple[int, ...]) -> Tensor:
        """The rows from which each of the tokens was, or would be, drawn: [m, vocab]."""
        return torch.stack([self.of[tokens[:i]] for i in range(len(tokens))])

    def law(self, length: int) -> Tensor:
        """The joint law of the first `length` tokens: [vocab, …, vocab]."""
        law = torch.empty((self.vocab,) * length, dtype=torch.float64)
        for tokens in itertools.product(range(self.vocab), repeat=length):
            law[tokens] = math.prod(self.of[tokens[:i]][t].item() for i, t in enumerate(tokens))
        return law


def blocks(draft: Table, m: int):
    """Every block of m drafted tokens with its probability."""
    law = draft.law(m)
    for tokens in itertools.product(range(draft.vocab), repeat=m):
        yield tokens, law[tokens].item()


def emitted_law(rule: Rule, draft: Table, verifier: Table, m: int) -> Tensor:
    """The joint law of the first m+1 tokens after one round, continued by the verifier."""
    law = torch.zeros((draft.vocab,) * (m + 1), dtype=torch.float64)
    for tokens, weight in blocks(draft, m):
        p, q, n = draft.block(tokens), verifier.block(tokens), torch.tensor(tokens)
        for kept, chance in enumerate(rule.accept_probs(p, q, n).tolist()):
            standing = rule.at(p, q, n, kept)
            drawn = standing.recovery_probs(p[kept], q[kept], tokens[kept])
            _continue(law, verifier, tokens[:kept], drawn * (weight * (1 - chance)))
            weight *= chance
        _continue(law, verifier, tokens, verifier.of[tokens] * weight)
    return law


def _continue(law: Tensor, verifier: Table, prefix: tuple[int, ...], weights: Tensor) -> None:
    """Add a prefix with one more token of these weights, and what the verifier puts behind."""
    for token, weight in enumerate(weights.tolist()):
        grown = (*prefix, token)
        if len(grown) == law.dim():
            law[grown] += weight
        elif weight > 0:
            _continue(law, verifier, grown, verifier.of[grown] * weight)


def expected_accepted(rule: Rule, draft: Table, verifier: Table, m: int) -> float:
    total = 0.0
    for tokens, weight in blocks(draft, m):
        chances = rule.accept_probs(draft.block(tokens), verifier.block(tokens), torch.tensor(tokens))
        total += weight * chances.cumprod(0).sum().item()
    return total


def made(setting: tuple[str, dict]) -> Rule:
    return make_rule(setting[0], **setting[1])
