"""From what a server sends to rounds: which tokens were accepted, and which one was drawn behind them.

A server sends what one verifier pass brought in one piece: the accepted tokens and the drawn one. Where it falls
behind, it sends several passes as one piece; how many tokens each brought it says at the end (`Counts`), and then the
rounds are told anew from that. What was drafted in vain, and every verdict's numbers, it does not tell. Knows nothing
of HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cactus.trace import Round, Status, Token


@dataclass(frozen=True)
class Arrived:
    """A token as it came, with its share of the seconds since the piece before."""

    id: int
    text: str
    seconds: float


@dataclass(frozen=True)
class Counts:
    """Of each pass over a draft, in order: drafted tokens, and how many of them were accepted."""

    drafted: Sequence[int]
    accepted: Sequence[int]


def spread(ids: Sequence[int], names: Sequence[str], text: str, seconds: float) -> list[Arrived]:
    """The tokens of one piece. The text is the server's own, each token's part of it as far as its name tells."""
    arrived = []
    for place, token in enumerate(ids):
        name = names[place] if place < len(names) else ""
        part = text if place == len(ids) - 1 else name if text.startswith(name) else ""
        text = text[len(part) :]
        arrived.append(Arrived(token, part, seconds / len(ids)))
    return arrived


@dataclass
class Teller:
    """Tells rounds of up to `drafted` tokens, 0 where nothing is drafted."""

    drafted: int
    index: int = 0
    position: int = 0

    def piece(self, arrived: Sequence[Arrived]) -> Iterator[Round]:
        """The rounds of one piece as far as it tells: one, and more only where one cannot have brought so many."""
        left = list(arrived)
        if self.index == 0 and left:
            yield self.round(left[:1], 0, 0, drawn=True)
            left = left[1:]
        while left:
            part, left = left[: self.drafted + 1], left[self.drafted + 1 :]
            yield self.round(part, self.drafted, len(part) - 1, drawn=True)

    def round(self, arrived: Sequence[Arrived], drafted: int, accepted: int, drawn: bool) -> Round:
        """The next round; `drawn`: whether its last token was drawn, and not drafted."""
        statuses: list[Status] = ["accepted"] * accepted
        if drawn:
            statuses.append("sampled" if not drafted else "bonus" if accepted == drafted else "recovered")
        tokens = tuple(
            Token(id=one.id, text=one.text, status=status, position=self.position + place)
            for place, (one, status) in enumerate(zip(arrived, statuses, strict=True))
        )
        self.index, self.position = self.index + 1, self.position + len(tokens)
        return Round(
            index=self.index - 1, num_draft_tokens=drafted, accepted_length=accepted, tokens=tokens,
            draft_seconds=None, verify_seconds=None, judge_seconds=None,
            step_seconds=sum(one.seconds for one in arrived),
        )  # fmt: skip


def recount(arrived: Sequence[Arrived], counts: Counts) -> list[Round] | None:
    """The rounds of a whole answer as the server counted them; None where its counts do not bring these tokens.

    The first token came with the prompt. A stop may have cut the last round, in the midst of what was accepted.
    """
    teller = Teller(0)
    rounds = list(teller.piece(arrived[:1]))
    left = list(arrived[1:])
    for drafted, accepted in zip(counts.drafted, counts.accepted, strict=True):
        if not left:
            break
        part, left = left[: accepted + 1], left[accepted + 1 :]
        whole = len(part) == accepted + 1
        rounds.append(teller.round(part, drafted, accepted if whole else len(part), drawn=whole))
    return None if left else rounds
