"""What a recorded run would have been under other settings, from its recorded probabilities alone.

Knows traces and rules, no models. What is said of one judged token is exact; what is said of a whole run holds up to
the first verdict that comes out otherwise, since what follows was drafted after the recorded one.
"""

from __future__ import annotations

from cactus.trace import Token


def lossless_accept_prob(token: Token) -> float | None:
    """min(1, q/p), what speculative sampling would have accepted this token with; None where nothing was drafted."""
    if token.draft_prob is None or token.verifier_prob is None or not token.draft_prob:
        return None
    return min(1.0, token.verifier_prob / token.draft_prob)
