"""One round of speculative decoding, and the state it moves.

    draft m tokens → one verifier pass over them → verdict → records → commit → rewind both caches

The verifier alone is the same round with m = 0. Knows rules, records and the protocols of `interfaces`; nothing of
any model library, of pages or of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from cactus.acceptance import Rule
from cactus.evidence import gather_evidence
from cactus.interfaces import CachedModel, DraftContext, Drafter, Proposal, Turn
from cactus.pace import Pace, Steady
from cactus.records import TokenWriter
from cactus.sampling import SamplingParams, draw, probs_from_logits
from cactus.text import StopStrings
from cactus.trace import Round, Token
from cactus.verdict import judge

PREFILL_CHUNK = 512
BASELINE_WARMUP = 2


@dataclass
class Loop:
    """One token stream in the making: caches, random generators and the tokens committed so far.

    Invariant after every round: the verifier's cache holds all committed tokens but the newest; the drafter's holds
    committed tokens only.
    """

    verifier: CachedModel
    drafter: Drafter | None
    writer: TokenWriter
    num_draft_tokens: int
    sampling: SamplingParams
    vocab_size: int
    committed: list[int]
    draft_generator: torch.Generator
    judge_generator: torch.Generator
    rule: Rule | None
    pace: Pace = field(default_factory=Steady)
    rounds_done: int = 0
    hidden: list[Tensor] = field(default_factory=list)

    def prefill(self, should_stop: Callable[[], bool], turn: Turn = nullcontext) -> bool:
        """Read the prompt but its last token, in chunks, each in a turn; False if stopped meanwhile."""
        while self.verifier.length < len(self.committed) - 1:
            with turn():
                if should_stop():
                    return False
                self._read_chunk()
        return True

    def _read_chunk(self) -> None:
        """The next part of the prompt, with both models."""
        done = self.verifier.length
        end = min(done + PREFILL_CHUNK, len(self.committed) - 1)
        self._feed(self.committed[done:end], keep=1)
        self.verifier.rewind(end)
        if self.drafter is not None and self._draft_room() > 0:
            self.drafter.prefill(self.committed[:end], self._take_hidden())

    def step(self) -> Round:
        """One round."""
        clock = [time.perf_counter()]
        proposal = self._propose()
        clock.append(time.perf_counter())
        drafted = proposal.tokens
        logits = self._feed(self.committed[self.verifier.length :] + drafted, keep=len(drafted) + 1)
        clock.append(time.perf_counter())
        verifier_probs = self._probs(logits, drafted)
        verdict = judge(self.rule, drafted, proposal.probs, verifier_probs, self.judge_generator)
        clock.append(time.perf_counter())
        evidence = gather_evidence(self.rule, verdict, drafted, proposal.probs, verifier_probs)
        tokens = self.writer.write(drafted, verdict, evidence)
        clock.append(time.perf_counter())
        accepted = sum(token.status == "accepted" for token in tokens)
        self.pace.learn(verdict.accept_probs[: verdict.accepted + 1], verdict.accepted + 1)
        self._commit(tokens, accepted)
        clock.append(time.perf_counter())
        draft, verify, judging, record, commit = (end - start for start, end in pairwise(clock))
        self.rounds_done += 1
        return Round(
            index=self.rounds_done - 1,
            num_draft_tokens=len(drafted),
            accepted_length=accepted,
            draft_seconds=draft,
            verify_seconds=verify,
            judge_seconds=judging + commit,
            record_seconds=record,
            tokens=tuple(tokens),
        )

    def settle(self) -> None:
        """Behind the last round: what a drafter has not read yet of the hidden states is read."""
        if self.drafter is not None and self.drafter.wants_hidden:
            self.drafter.prefill(self.committed[: self.verifier.length], self._take_hidden())

    def _draft_room(self) -> int:
        """How many tokens to draft: the run's last token is the verifier's; the drafter's context ends somewhere."""
        room = min(self.num_draft_tokens, self.writer.left - 1)
        if self.drafter is not None and self.drafter.context_length is not None:
            room = min(room, self.drafter.context_length - len(self.committed))
        return max(0, room)

    def _propose(self) -> Proposal:
        room = self._draft_room()
        if self.drafter is None or room == 0:
            return Proposal([], torch.empty(0, self.vocab_size))
        self.pace.begin()
        context = DraftContext(
            self.committed, room, self._choose, self.writer.eos_ids, self._take_hidden(), self.pace.enough
        )
        return self.drafter.propose(context)

    def _take_hidden(self) -> Tensor | None:
        """Of the tokens fed since it was last taken."""
        hidden = torch.cat(self.hidden) if self.hidden else None
        self.hidden.clear()
        return hidden

    def _choose(self, logits: Tensor, before: Sequence[int]) -> tuple[int, Tensor]:
        probs = probs_from_logits(logits[None], self.sampling, [before])[0]  # [vocab]
        return draw(probs, self.draft_generator), probs

    def _feed(self, tokens: Sequence[int], keep: int) -> Tensor:
        wants_hidden = self.drafter is not None and self.drafter.wants_hidden
        output = self.verifier.feed(tokens, keep=keep, want_hidden=wants_hidden)
        if output.hidden is not None:
            self.hidden.append(output.hidden)
        return output.logits

    def _probs(self, logits: Tensor, drafted: list[int]) -> Tensor:
        """Processed distributions [m + 1, vocab]; each row has seen the drafted tokens before it."""
        contexts: list[Sequence[int]] | None = None
        if self.sampling.repetition_penalty != 1.0:
            contexts = [self.committed + drafted[:i] for i in range(len(drafted) + 1)]
        return probs_from_logits(logits[:, : self.vocab_size], self.sampling, contexts)

    def _commit(self, tokens: list[Token], accepted: int) -> None:
        """Keep what was emitted: the text, the caches, the hidden states, and what the rule has spent."""
        before = len(self.committed)
        self.committed += [token.id for token in tokens if token.emitted]
        if self.hidden:  # without the rows of drafted tokens that did not stay
            surplus = self.verifier.length - (len(self.committed) - 1)
            self.hidden[-1] = self.hidden[-1][: len(self.hidden[-1]) - surplus]
        self.verifier.rewind(len(self.committed) - 1)
        if self.drafter is not None:
            self.drafter.rewind(before + accepted)
        if self.rule is not None:
            self.rule = self.rule.advance(sum(token.kl or 0.0 for token in tokens if token.judged))

    def time_single_steps(self, steps: int, should_stop: Callable[[], bool], turn: Turn = nullcontext) -> list[float]:
        """Seconds of `steps` rounds with m = 0 on copies of the verifier's cache and the text: nothing else moves."""
        steps = min(steps + BASELINE_WARMUP, self.verifier.context_length - len(self.committed))
        with turn():
            alone = self._alone(steps)
        seconds = []
        for _ in range(steps):
            with turn():
                if should_stop():
                    break
                seconds.append(alone.step().seconds)
        return seconds[BASELINE_WARMUP:]

    def _alone(self, steps: int) -> Loop:
        """A copy that goes its own way for so many steps: the verifier alone, with a seed of its own."""
        writer = replace(self.writer, stream=self.writer.stream.fork(), stops=StopStrings(()), eos_ids=frozenset())
        return replace(
            self,
            verifier=self.verifier.fork(),
            drafter=None,
            rule=None,
            writer=replace(writer, emitted=0, max_new_tokens=steps + 1, stop_reason=None),
            committed=self.committed[:],
            judge_generator=torch.Generator(self.verifier.device).manual_seed(0),
            hidden=[],
        )
