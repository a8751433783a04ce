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

import torch
from torch import Tensor

from cactus.acceptance import Rule
from cactus.clock import Clock, wait
from cactus.drafters import no_proposal
from cactus.evidence import found, work_out
from cactus.interfaces import CachedModel, DraftContext, Drafter, Proposal, Turn
from cactus.pace import Pace, Steady
from cactus.records import TokenWriter
from cactus.sampling import NonFiniteLogits, SamplingParams, check_finite, distribution, pick
from cactus.seen import Seen
from cactus.text import StopStrings
from cactus.trace import Round, Token
from cactus.transfer import is_far, read, send
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

    def __post_init__(self) -> None:
        self._seen = Seen(self.vocab_size, self.verifier.device, self.sampling.repetition_penalty != 1.0)

    def prefill(self, should_stop: Callable[[], bool], turn: Turn = nullcontext) -> bool:
        """Read the prompt but its last token, in chunks, each in a turn; False if stopped meanwhile."""
        while self.verifier.length < len(self.committed) - 1:
            with turn():
                if should_stop():
                    return False
                self._read_chunk()
                wait(self.verifier.device)
        return True

    def _read_chunk(self) -> None:
        """The next part of the prompt, with both models."""
        done = self.verifier.length
        end = min(done + PREFILL_CHUNK, len(self.committed) - 1)
        self._feed(self.committed[done:end], keep=1)
        self.verifier.rewind(end)
        if self.drafter is not None and self._draft_room() > 0:
            self.drafter.prefill(self.committed[:end], self._take_hidden())

    @torch.inference_mode()
    def step(self) -> Round:
        """One round. Nothing is read from the device before `read`, unless the pace looks at every drafted token."""
        clock = Clock(self.verifier.device)
        self._seen.begin(self.committed)
        proposal = self._propose()
        clock.mark()
        logits = self._verify(proposal.tokens)
        clock.mark()
        verifier_probs = self._probs(logits, proposal.tokens)
        verdict = judge(self.rule, proposal.tokens, proposal.probs, verifier_probs, self.judge_generator)
        clock.mark()
        evidence = work_out(self.rule, verdict, proposal, verifier_probs, ahead=is_far(self.verifier.device))
        clock.mark()
        columns = read(*evidence)
        draft, verify, judging, working = clock.seconds()
        began = time.perf_counter()
        findings = found(*columns)
        if not findings.sound:
            _refuse(logits)
        tokens = self.writer.write(findings)
        written = time.perf_counter()
        accepted = sum(token.status == "accepted" for token in tokens)
        self.pace.learn(findings.accept_probs, findings.accepted + 1)
        self._commit(tokens, accepted)
        self.rounds_done += 1
        return Round(
            index=self.rounds_done - 1,
            num_draft_tokens=len(findings.drafted),
            accepted_length=accepted,
            draft_seconds=draft,
            verify_seconds=verify,
            judge_seconds=judging + time.perf_counter() - written,
            record_seconds=working + written - began,
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
            return no_proposal(self.vocab_size, self.verifier.device)
        self.pace.begin()
        enough = self._enough if self.pace.looks or not is_far(self.verifier.device) else None
        return self.drafter.propose(DraftContext(self.committed, room, self._choose, self._take_hidden(), enough))

    def _enough(self, token: int | Tensor, draft_prob: float | Tensor) -> bool:
        """Whether drafting ends behind this token: where more would not pay, or, if it is free to see, at an end."""
        enough = self.pace.looks and self.pace.enough(float(draft_prob))
        return enough or (not is_far(self.verifier.device) and int(token) in self.writer.eos_ids)

    def _take_hidden(self) -> Tensor | None:
        """Of the tokens fed since it was last taken."""
        hidden = torch.cat(self.hidden) if self.hidden else None
        self.hidden.clear()
        return hidden

    def _choose(self, logits: Tensor, token_ids: Tensor | None) -> tuple[Tensor, Tensor]:
        probs = distribution(logits, self.sampling, self._seen.by_draft(len(logits), token_ids))  # [k]
        column = pick(probs, self.draft_generator)
        self._seen.add(column if token_ids is None else token_ids[column])
        return column, probs

    def _verify(self, drafted: Tensor) -> Tensor:
        """The verifier's logits [m + 1, columns] behind the committed tokens and each drafted one."""
        fresh = send(self.committed[self.verifier.length :], self.verifier.device)
        return self._feed(torch.cat([fresh, drafted]), keep=len(drafted) + 1)

    def _feed(self, tokens: Sequence[int] | Tensor, keep: int) -> Tensor:
        wants_hidden = self.drafter is not None and self.drafter.wants_hidden
        output = self.verifier.feed(tokens, keep=keep, want_hidden=wants_hidden)
        if output.hidden is not None:
            self.hidden.append(output.hidden)
        return output.logits

    def _probs(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """Processed distributions [m + 1, vocab]; each row has seen the drafted tokens before it."""
        return distribution(logits[:, : self.vocab_size], self.sampling, self._seen.by_verifier(drafted))

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
            writer=replace(writer, emitted=0, max_new_tokens=steps + 1, stop_reason=None, ends=None),
            committed=self.committed[:],
            judge_generator=torch.Generator(self.verifier.device).manual_seed(0),
            hidden=[],
        )


def _refuse(logits: Tensor) -> None:
    """Say what is wrong where a token came of no distribution; the verifier's logits are at hand."""
    check_finite(logits)
    raise NonFiniteLogits("the draft model's logits contain NaN or infinity, or the rule left nothing to draw from")
