"""Whether a round costs the same late in a long text: time and page traffic at about 150 and 1,500 tokens of text.

Every method writes one text past the second place (no end token stops it), and the rounds around both places are
compared. What the models' own attention adds is timed apart, by bare verifier passes over the same numbers of tokens.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cactus.acceptance import make_rule
from cactus.bench import machine
from cactus.bench.bars import bar
from cactus.bench.machine import in_words
from cactus.bench.methods import MethodSpec
from cactus.bench.plan import Plan
from cactus.cli import INTERRUPTED
from cactus.commands import pairs
from cactus.decoding import decode
from cactus.errors import CactusError
from cactus.files import write_whole
from cactus.interfaces import TextCodec
from cactus.metrics import ratio
from cactus.models import context_length
from cactus.pairs import Pair
from cactus.settings import DraftLength
from cactus.ui.view import View

PROMPT = "Write a very long story about a journey around the world, with many stops and many people."
PLACES = (150, 1500)
WINDOW = 50  # rounds that begin so many tokens before or behind a place belong to it
PASSES = 25
CHUNK = 512
NEGLIGIBLE = 0.02  # of a round: less growth than this is not split into shares
NOTES = (
    "round: seconds from asking for a round to having it, records for the trace included, the page not; medians over "
    f"the rounds that begin within {WINDOW} tokens of the place.",
    "explained by passes: growth of verifying and drafting ÷ growth of the round; – where a round grew by less than "
    f"{NEGLIGIBLE:.0%}.",
    f"bare pass: a verifier pass over as many tokens with a cache of that length, outside any run, median of {PASSES}.",
    "page: bytes of the lines that one round appends to text, tiles and plots, and the seconds to make them.",
)


@dataclass(frozen=True)
class Endless:
    """A codec whose texts do not end by themselves."""

    codec: TextCodec
    eos_ids: frozenset[int] = frozenset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.codec, name)


@dataclass(frozen=True)
class RoundCost:
    """What one round took. begins: tokens of text before it; seconds; page_bytes: what the page would be sent."""

    begins: int
    drafted: int
    seconds: float
    draft_seconds: float
    verify_seconds: float
    judge_seconds: float
    page_bytes: int
    page_seconds: float

    @property
    def other_seconds(self) -> float:
        return self.seconds - self.draft_seconds - self.verify_seconds - self.judge_seconds


@dataclass(frozen=True)
class Place:
    """Medians over the rounds around one length of the text, and a bare verifier pass at that length."""

    tokens: int
    rounds: int
    round_seconds: float
    draft_seconds: float
    verify_seconds: float
    judge_seconds: float
    other_seconds: float
    bare_pass_seconds: float
    page_bytes: float
    page_seconds: float


@dataclass(frozen=True)
class Growth:
    """One method at both places. explained: share of a round's growth that the models' own passes make."""

    method: str
    num_draft_tokens: DraftLength
    early: Place
    late: Place

    @property
    def growth_seconds(self) -> float:
        return self.late.round_seconds - self.early.round_seconds

    @property
    def passes_growth_seconds(self) -> float:
        early, late = self.early, self.late
        return late.verify_seconds + late.draft_seconds - early.verify_seconds - early.draft_seconds

    @property
    def explained(self) -> float | None:
        if self.growth_seconds < NEGLIGIBLE * self.early.round_seconds:
            return None
        return ratio(self.passes_growth_seconds, self.growth_seconds)


def run(
    plan: Plan, methods: Sequence[MethodSpec], lengths: Sequence[DraftLength], pair: Pair, folder: Path, command: str
) -> int:
    """Measure, write long.json and long.md into the folder, print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    contests = [(method, length) for method in methods for length in (lengths if method.drafts else (0,))]
    found, stopped = _measure(plan, contests, pair)
    if not found:
        return INTERRUPTED
    record = {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "pair": f"{plan.pair}; {plan.loaded}",
        "machine": machine.describe(pair.device),
        "versions": plan.versions,
        "notes": NOTES,
        "methods": [asdict(item) | {"explained": item.explained} for item in found],
    }
    write_whole(folder / "long.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n")
    write_whole(folder / "long.md", to_markdown(record, found))
    sys.stdout.write(pairs.table(table(found)) + f"\nreport: {folder / 'long.md'}\n")
    return INTERRUPTED if stopped else 0


def _measure(plan: Plan, contests: Sequence[tuple[MethodSpec, DraftLength]], pair: Pair) -> tuple[list[Growth], bool]:
    """One method after the other; what is finished, and whether Ctrl-C ended it."""
    places = choose_places(pair)
    found: list[Growth] = []
    with bar(len(contests) * (places[1] + WINDOW)) as progress:
        try:
            for method, length in contests:
                progress.set_description_str(f"{method} m={length}" if length else str(method), refresh=False)
                costs: list[RoundCost] = []
                for cost in round_costs(plan, method, length, pair, places[1] + WINDOW):
                    progress.update(cost.begins - (costs[-1].begins if costs else 0))
                    costs.append(cost)
                found.append(growth(method, length, costs, places, pair))
        except KeyboardInterrupt:
            return found, True
    return found, False


def choose_places(pair: Pair) -> tuple[int, int]:
    """150 and 1,500 tokens of text; the second as far as the context reaches where it is shorter."""
    drafter_context = pair.new_drafter().context_length
    context = min(context_length(pair.model), drafter_context or sys.maxsize)
    room = context - len(pair.codec.encode_prompt(PROMPT)) - 2 * WINDOW
    late = min(PLACES[1], room)
    if late < PLACES[0] + 2 * WINDOW:
        raise CactusError(
            f"the pair reads {context:,} tokens in all; --long needs room for {PLACES[0] + 2 * WINDOW:,} and the prompt"
        )
    return PLACES[0], late


def round_costs(plan: Plan, method: MethodSpec, length: DraftLength, pair: Pair, tokens: int) -> Iterator[RoundCost]:
    """The rounds of a text of so many tokens, as they come."""
    rule = make_rule(method.name, **method.params) if method.drafts else None
    endless = replace(pair, codec=Endless(pair.codec))  # type: ignore[arg-type]
    going = decode(endless, PROMPT, rule, length, plan.sampling, tokens, plan.seed)
    going.prefill()
    view, begins = View(going.trace), 0
    sent = view.shown()
    while True:
        began = time.perf_counter()
        round_ = next(going, None)
        seconds = time.perf_counter() - began
        if round_ is None:
            return
        began = time.perf_counter()
        view.add(round_)
        shown = view.shown()
        page_seconds = time.perf_counter() - began
        yield RoundCost(
            begins=begins,
            drafted=round_.num_draft_tokens,
            seconds=seconds,
            draft_seconds=round_.draft_seconds or 0.0,
            verify_seconds=round_.verify_seconds or 0.0,
            judge_seconds=round_.judge_seconds or 0.0,
            page_bytes=update_bytes(sent, shown),
            page_seconds=page_seconds,
        )
        sent, begins = shown, begins + len(round_.emitted)


def update_bytes(before: Sequence[str], after: Sequence[str]) -> int:
    """What goes to the page: of a value that only grew what is new, otherwise all of it."""
    return sum(
        len(new[len(old) if new.startswith(old) else 0 :].encode()) for old, new in zip(before, after, strict=True)
    )


def growth(
    method: MethodSpec, length: DraftLength, costs: Sequence[RoundCost], places: tuple[int, int], pair: Pair
) -> Growth:
    """The rounds around both places."""
    early, late = (_place(costs, place, length, pair) for place in places)
    return Growth(str(method), length, early, late)


def _place(costs: Sequence[RoundCost], place: int, length: DraftLength, pair: Pair) -> Place:
    near = [cost for cost in costs if abs(cost.begins - place) <= WINDOW]
    near = [cost for cost in near if cost.drafted == length] or near  # whole drafts, where there are any
    if not near:
        raise CactusError(f"the text ended before {place:,} tokens; nothing could be compared")

    def median(name: str) -> float:
        return statistics.median(getattr(cost, name) for cost in near)

    return Place(
        tokens=place,
        rounds=len(near),
        round_seconds=median("seconds"),
        draft_seconds=median("draft_seconds"),
        verify_seconds=median("verify_seconds"),
        judge_seconds=median("judge_seconds"),
        other_seconds=median("other_seconds"),
        bare_pass_seconds=bare_pass(pair, place, 1 + round(median("drafted"))),
        page_bytes=median("page_bytes"),
        page_seconds=median("page_seconds"),
    )


def bare_pass(pair: Pair, cached: int, fed: int) -> float:
    """Seconds of a verifier pass over `fed` tokens behind the prompt and `cached` tokens, in no run: the median."""
    tokens = pair.codec.encode_prompt(PROMPT)
    tokens = (tokens * (1 + (cached + len(tokens)) // len(tokens)))[: cached + len(tokens)]
    verifier = pair.new_verifier()
    for start in range(0, len(tokens), CHUNK):
        verifier.feed(tokens[start : start + CHUNK])
        verifier.rewind(verifier.length)
    seconds = []
    for _ in range(PASSES):
        began = time.perf_counter()
        verifier.feed(tokens[:fed], keep=fed)
        seconds.append(time.perf_counter() - began)
        verifier.rewind(len(tokens))
    return statistics.median(seconds)


def table(found: Sequence[Growth]) -> list[tuple[str, ...]]:
    """Milliseconds and bytes a round, early → late."""
    head = ("method", "m", "tokens", "round ms", "drafting", "verifying", "judging", "else", "bare pass",
            "explained by passes", "page bytes", "page ms")  # fmt: skip
    return [head, *(_line(item) for item in found)]


def _line(item: Growth) -> tuple[str, ...]:
    early, late = item.early, item.late
    parts = ("round", "draft", "verify", "judge", "other", "bare_pass")
    cells = [
        f"{1000 * getattr(early, f'{part}_seconds'):.2f} → {1000 * getattr(late, f'{part}_seconds'):.2f}"
        for part in parts
    ]
    explained = "–" if item.explained is None else f"{item.explained:.0%}"
    page = f"{early.page_bytes:.0f} → {late.page_bytes:.0f}"
    page_ms = f"{1000 * early.page_seconds:.2f} → {1000 * late.page_seconds:.2f}"
    places = f"{early.tokens} → {late.tokens}"
    return item.method, str(item.num_draft_tokens), places, *cells, explained, page, page_ms


def to_markdown(record: dict[str, Any], found: Sequence[Growth]) -> str:
    """The report for reading."""
    head, *lines = table(found)
    rows = [head, ["---"] * len(head), *lines]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    facts = [
        f"- pair: {record['pair']}",
        f"- machine: {in_words(record['machine'])}",
        f"- versions: {versions}",
        f"- date: {record['date']}",
    ]
    parts = [
        "# Rounds early and late in a long text",
        f"```\n{record['command']}\n```",
        "\n".join(facts),
        "\n".join("| " + " | ".join(row) + " |" for row in rows),
        "\n".join(f"- {note}" for note in record["notes"]),
    ]
    return "\n\n".join(parts) + "\n"
