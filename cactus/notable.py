"""Single tokens of a run that are worth a look. Knows traces alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cactus.trace import Round, Token, Trace
from cactus.whatif import lossless_accept_prob


@dataclass(frozen=True)
class Notable:
    """A token with its round and its place there. among: how many tokens of the run are of this kind."""

    token: Token
    round: Round
    place: int
    among: int


def likeliest_rejected(trace: Trace) -> Notable | None:
    """The rejected token that the verifier found likeliest."""
    return _best(trace, lambda token: token.status == "rejected", lambda token: token.verifier_prob or 0.0)


def only_boosted(trace: Trace) -> Notable | None:
    """Of the accepted tokens that lossless sampling had rejected with the same u, the one it had accepted least."""
    return _best(trace, _is_only_boosted, lambda token: -(lossless_accept_prob(token) or 0.0))


def unlikeliest_accepted(trace: Trace) -> Notable | None:
    """The accepted token that the verifier found least likely."""
    return _best(trace, lambda token: token.status == "accepted", lambda token: -(token.verifier_prob or 0.0))


KINDS: Mapping[str, Callable[[Trace], Notable | None]] = MappingProxyType(
    {kind.__name__: kind for kind in (likeliest_rejected, only_boosted, unlikeliest_accepted)}
)


def _is_only_boosted(token: Token) -> bool:
    lossless = lossless_accept_prob(token)
    return token.status == "accepted" and lossless is not None and (token.uniform or 0.0) >= lossless


def _best(trace: Trace, fits: Callable[[Token], bool], rank: Callable[[Token], float]) -> Notable | None:
    found = [
        (token, round_, place)
        for round_ in trace.rounds
        for place, token in enumerate(round_.tokens)
        if token.judged and token.verifier_prob is not None and fits(token)
    ]
    if not found:
        return None
    token, round_, place = max(found, key=lambda entry: rank(entry[0]))
    return Notable(token, round_, place, len(found))
