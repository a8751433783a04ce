"""Rules whose recovery distribution does not depend on which token was rejected.

    out(x) = p(x)·a(x) + (Σ_n p(n)·(1 − a(n)))·g(x)

A rule of this family supplies a, the accept probability of every token, and g. What it aims
at is what it emits, so h is out, the boosted probability is out(n), and KL is KL(out‖q).
Knows nothing of how a round is drafted or run.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cactus.acceptance.parameter import Parameter
from cactus.acceptance.rule import Guarantee, Rule, Steps, acceptance, chosen, normalised
from cactus.divergence import as_numbers, entropy, kl


class Plan(NamedTuple):
    """A rule's answer for whole rows."""

    accept: Tensor  # [..., vocab], the accept probability of each token
    recovery: Tensor  # [..., vocab], the distribution drawn from after any rejection


@dataclass(frozen=True)
class FixedRecoveryRule(Rule):
    """A rule given by its plan.

    Where nothing that can be rejected can be recovered, it is speculative sampling against its own output: that is p
    where something is rejected, times a, and above p elsewhere.
    """

    beyond_sampling = ""

    @abstractmethod
    def plan(self, draft_probs: Tensor, verifier_probs: Tensor) -> Plan:
        """[..., vocab], [..., vocab] -> Plan."""

    def judge(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Steps:
        plan = self.plan(draft_probs, verifier_probs)
        output = _emitted(draft_probs, plan)  # [m, vocab]
        divergence = kl(output, verifier_probs)
        return Steps(
            accept_prob=chosen(plan.accept, draft_tokens),
            boosted_prob=chosen(output, draft_tokens),
            kl=divergence,
            output_kl=divergence,
        )

    def accept_row(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        return self.plan(draft_probs, verifier_probs).accept

    def recovery_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_token: int | Tensor) -> Tensor:
        return self.plan(draft_probs, verifier_probs).recovery

    def output_probs(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        return _emitted(draft_probs, self.plan(draft_probs, verifier_probs))

    def accept_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        return chosen(self.plan(draft_probs, verifier_probs).accept, draft_tokens)

    def adjusted_rows(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        return self.output_probs(draft_probs, verifier_probs)


def _emitted(draft_probs: Tensor, plan: Plan) -> Tensor:
    accepted = draft_probs * plan.accept
    rejected = (draft_probs - accepted).sum(-1, keepdim=True)
    return accepted.addcmul_(rejected, plan.recovery)


@dataclass(frozen=True)
class PointwiseRule(FixedRecoveryRule):
    """Accepts by the two probabilities of the token itself and one level of the verifier's row.

    So a verdict need not look at any other token, but for the level.
    """

    def level(self, verifier_probs: Tensor) -> Tensor:
        """What of the verifier's row a verdict depends on: [..., vocab] -> [...]."""
        return torch.zeros_like(verifier_probs[..., 0])

    @abstractmethod
    def accept(self, draft_prob: Tensor, verifier_prob: Tensor, level: Tensor) -> Tensor:
        """The accept probability, element by element."""

    @abstractmethod
    def recovery(self, draft_probs: Tensor, verifier_probs: Tensor, level: Tensor) -> Tensor:
        """[..., vocab], [..., vocab], [..., 1] -> [..., vocab]."""

    def plan(self, draft_probs: Tensor, verifier_probs: Tensor) -> Plan:
        level = self.level(verifier_probs).unsqueeze(-1)  # [..., 1]
        accept = self.accept(draft_probs, verifier_probs, level)
        return Plan(accept, self.recovery(draft_probs, verifier_probs, level))

    def accept_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        draft_prob, verifier_prob = chosen(draft_probs, draft_tokens), chosen(verifier_probs, draft_tokens)
        return self.accept(draft_prob, verifier_prob, self.level(verifier_probs))


@dataclass(frozen=True)
class Tas(PointwiseRule):
    name = "tas"
    label = "Typical acceptance"
    summary = "Accepts what the verifier finds typical; a rejection takes the verifier's best."
    formula = "accept iff q(n) > min(ε, α·e^(−H(q))); recover argmax q"
    reads = "vocabulary"
    parameters = (
        Parameter(
            name="epsilon",
            label="Threshold ε",
            default=0.09,
            help="Tokens above this verifier probability are always accepted.",
            minimum=0.0,
            maximum=1.0,
            step=0.01,
        ),
        Parameter(
            name="alpha",
            label="Entropy factor α",
            default=0.3,
            help="Scales the threshold that falls as the verifier grows unsure.",
            minimum=0.0,
            maximum=1.0,
            step=0.01,
        ),
    )

    epsilon: float = 0.09
    alpha: float = 0.3

    def level(self, verifier_probs: Tensor) -> Tensor:
        return (self.alpha * (-entropy(verifier_probs)).exp()).clamp(max=self.epsilon)

    def accept(self, draft_prob: Tensor, verifier_prob: Tensor, level: Tensor) -> Tensor:
        return as_numbers(torch.gt, verifier_prob, level)

    def recovery(self, draft_probs: Tensor, verifier_probs: Tensor, level: Tensor) -> Tensor:
        best = verifier_probs.argmax(-1, keepdim=True)
        return torch.zeros_like(verifier_probs).scatter(-1, best, 1.0)


@dataclass(frozen=True)
class TopK(PointwiseRule):
    name = "topk"
    label = "Top-k acceptance"
    summary = "Accepts any of the verifier's k most probable tokens."
    formula = "accept iff q(n) ≥ k-th largest q; recover ∝ (1[q ≥ k-th] − p)₊"
    reads = "vocabulary"
    parameters = (
        Parameter(
            name="k",
            label="k",
            default=10,
            help="How many of the verifier's most probable tokens are accepted.",
            minimum=1,
            maximum=100,
            step=1,
        ),
    )

    k: int = 10

    def level(self, verifier_probs: Tensor) -> Tensor:
        count = min(self.k, verifier_probs.shape[-1])
        return verifier_probs.topk(count, dim=-1).values[..., -1]

    def accept(self, draft_prob: Tensor, verifier_prob: Tensor, level: Tensor) -> Tensor:
        # A token that the verifier rules out is in no top k, though the k-th largest may be 0.
        return as_numbers(torch.ge, verifier_prob, level) * as_numbers(torch.gt, verifier_prob, 0)

    def recovery(self, draft_probs: Tensor, verifier_probs: Tensor, level: Tensor) -> Tensor:
        among = self.accept(draft_probs, verifier_probs, level)
        return normalised((among - draft_probs).clamp(min=0), among)


@dataclass(frozen=True)
class Interp(PointwiseRule):
    name = "interp"
    label = "Interpolation"
    summary = "Aims at a mixture of the two models instead of the verifier."
    formula = "h = α·p + (1 − α)·q; accept min(1, h(n)/p(n)); recover ∝ (h − p)₊"
    parameters = (
        Parameter(
            name="alpha",
            label="Draft's share α",
            default=0.3,
            help="Weight of the draft model in the mixture. 0 is lossless.",
            minimum=0.0,
            maximum=1.0,
            step=0.05,
        ),
    )

    alpha: float = 0.3

    def accept(self, draft_prob: Tensor, verifier_prob: Tensor, level: Tensor) -> Tensor:
        return acceptance(self._mixture(draft_prob, verifier_prob), draft_prob)

    def recovery(self, draft_probs: Tensor, verifier_probs: Tensor, level: Tensor) -> Tensor:
        # (h − p)₊ without the rounding of the mixture.
        residual = (1 - self.alpha) * (verifier_probs - draft_probs).clamp(min=0)
        return normalised(residual, self._mixture(draft_probs, verifier_probs))

    def adjusted_rows(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        return self._mixture(draft_probs, verifier_probs)

    def _mixture(self, draft_prob: Tensor, verifier_prob: Tensor) -> Tensor:
        return verifier_prob.lerp(draft_prob, self.alpha)  # exactly p where q = p

    def guarantees(self, draft_probs: Tensor, verifier_probs: Tensor) -> tuple[Guarantee, ...]:
        furthest = float(kl(draft_probs, verifier_probs))
        bound = self.alpha * furthest if self.alpha else 0.0  # 0·∞ is 0 here
        return (Guarantee("KL(output‖q)", bound, "α·KL(p‖q)"),)


@dataclass(frozen=True)
class Lenience(PointwiseRule):
    name = "lenience"
    label = "Lenience"
    summary = "Treats the draft as if it had been less sure than it was."
    formula = "accept min(1, q(n)/(ℓ·p(n))); recover ∝ (q − p)₊"
    parameters = (
        Parameter(
            name="lenience",
            label="Lenience ℓ",
            default=0.5,
            help="The draft's probability counts ℓ times. 1 is lossless, less accepts more.",
            minimum=0.01,
            maximum=1.0,
            step=0.01,
        ),
    )

    lenience: float = 0.5

    def accept(self, draft_prob: Tensor, verifier_prob: Tensor, level: Tensor) -> Tensor:
        return acceptance(verifier_prob, self.lenience * draft_prob)

    def recovery(self, draft_probs: Tensor, verifier_probs: Tensor, level: Tensor) -> Tensor:
        return normalised((verifier_probs - draft_probs).clamp(min=0), verifier_probs)
