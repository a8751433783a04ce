"""Whether a round costs the same late in a long text: time and page traffic at about 150 and 1,500 tokens of text.

Every method writes one text past the second place (no end token stops it), and the rounds around both places are
compared. What the models' own attention adds is timed apart, by bare verifier passes over the same numbers of tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cactus.bench import growth
from cactus.bench.bars import bar
from cactus.bench.growth import NEGLIGIBLE, PASSES, WINDOW, Growth
from cactus.bench.long_rounds import PROMPT, RoundCost, round_costs
from cactus.bench.methods import MethodSpec
from cactus.bench.plan import Plan
from cactus.bench.sheet import Sheet
from cactus.cli import INTERRUPTED
from cactus.errors import CactusError
from cactus.models import context_length
from cactus.pairs import Pair
from cactus.settings import DraftLength

PLACES = (150, 1500)
NOTES = (
    "round: seconds from asking for a round to having it, records for the trace included, the page not; medians over "
    f"the rounds that begin within {WINDOW} tokens of the place.",
    "explained by passes: growth of verifying and drafting ÷ growth of the round; – where a round grew by less than "
    f"{NEGLIGIBLE:.0%}.",
    f"bare pass: a verifier pass over as many tokens with a cache of that length, outside any run, median of {PASSES}.",
    "page: bytes of the lines that one round appends to text, tiles and plots, and the seconds to make them.",
)


def run(
    plan: Plan, methods: Sequence[MethodSpec], lengths: Sequence[DraftLength], pair: Pair, folder: Path, command: str
) -> int:
    """Measure, write long.json and long.md into the folder, print the table."""
    contests = [(method, length) for method in methods for length in (lengths if method.drafts else (0,))]
    found, stopped = _measure(plan, contests, pair)
    if not found:
        return INTERRUPTED
    full = [asdict(item) | {"explained": item.explained} for item in found]
    sheet = Sheet("long", "Rounds early and late in a long text", NOTES, table(found), full)
    sheet.write(plan, pair.device, folder, command)
    return INTERRUPTED if stopped else 0


def _measure(plan: Plan, contests: Sequence[tuple[MethodSpec, DraftLength]], pair: Pair) -> tuple[list[Growth], bool]:
    """One method after the other; what is finished, and whether Ctrl-C ended it."""
    places = choose_places(pair)
    found: list[Growth] = []
    with bar(len(contests) * (places[1] + growth.WINDOW)) as progress:
        try:
            for method, length in contests:
                progress.set_description_str(f"{method} m={length}" if length else str(method), refresh=False)
                costs: list[RoundCost] = []
                for cost in round_costs(plan, method, length, pair, places[1] + growth.WINDOW):
                    progress.update(cost.begins - (costs[-1].begins if costs else 0))
                    costs.append(cost)
                found.append(growth.growth(str(method), length, costs, places, pair))
        except KeyboardInterrupt:
            return found, True
    return found, False


def choose_places(pair: Pair) -> tuple[int, int]:
    """150 and 1,500 tokens of text; the second as far as the context reaches where it is shorter."""
    drafter_context = pair.new_drafter().context_length
    context = min(context_length(pair.model), drafter_context or sys.maxsize)
    room = context - len(pair.codec.encode_prompt(PROMPT)) - 2 * growth.WINDOW
    late = min(PLACES[1], room)
    least = PLACES[0] + 2 * growth.WINDOW
    if late < least:
        raise CactusError(f"the pair reads {context:,} tokens in all; --long needs room for {least:,} and the prompt")
    return PLACES[0], late


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
