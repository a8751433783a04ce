"""What the page costs a run: the same run straight from the session, and through the page's whole server side.

Both take turns in one process (A B, B A, …), with the same seed and so the same tokens. The page's side is all that a
server does: handlers, rendering, Gradio's queue and its stream over the loopback, read to the end by one visitor. What
a browser does with it is not in it. While the session runs alone, nothing is served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cactus.bench.bars import bar
from cactus.bench.long_rounds import PROMPT
from cactus.bench.methods import MethodSpec
from cactus.bench.plan import Plan
from cactus.bench.sheet import Sheet
from cactus.bench.summary import spread
from cactus.bench.visitor import Traffic, visited
from cactus.bench.watched import Passage, Watched
from cactus.cli import INTERRUPTED
from cactus.errors import CactusError
from cactus.pairs import Pair
from cactus.session import Session
from cactus.settings import AUTO, DraftLength
from cactus.ui import settings

TARGET = 0.03
NOTES = (
    "ms a token: from asking for the first round to having the last; medians. Prefill and the timing of the verifier "
    "alone are not in it.",
    "page costs: time a token through the page ÷ time a token without it − 1, of every turn of the two; their median "
    f"and quartiles. The target is under {TARGET:.0%}.",
    "of the processor: seconds of processor time that the page's threads took, reader included ÷ seconds of the run "
    "without the page. What of it holds up the models depends on the cores that are free.",
    "updates, kB: what one run sent to the page. The page draws in the browser, which is not measured.",
)


@dataclass(frozen=True)
class Turn:
    """The same run without and with the page."""

    alone: Passage
    paged: Passage
    traffic: Traffic

    @property
    def wall_cost(self) -> float:
        """Share by which the page made the run slower."""
        return self.paged.seconds / self.alone.seconds - 1

    @property
    def processor_cost(self) -> float:
        """Processor time of the page ÷ time of the run without it."""
        return (self.paged.beside_seconds - self.alone.beside_seconds) / self.alone.seconds


@dataclass(frozen=True)
class Cost:
    """One method: its turns, the warm-up left out."""

    method: str
    num_draft_tokens: DraftLength
    turns: tuple[Turn, ...]

    @property
    def figures(self) -> dict[str, Any]:
        """Medians, and the quartiles of what the page costs."""
        turns, tokens = self.turns, len(self.turns[0].alone.tokens)
        cost = spread([turn.wall_cost for turn in turns])
        assert cost
        return {
            "tokens": tokens,
            "alone_seconds_per_token": median(turn.alone.seconds for turn in turns) / tokens,
            "page_seconds_per_token": median(turn.paged.seconds for turn in turns) / tokens,
            "wall_cost": cost.median,
            "wall_cost_quartiles": (cost.low, cost.high),
            "processor_cost": median(turn.processor_cost for turn in turns),
            "updates": median(turn.traffic.updates for turn in turns),
            "bytes": median(turn.traffic.bytes for turn in turns),
        }


def run(
    plan: Plan,
    methods: Sequence[MethodSpec],
    lengths: Sequence[DraftLength],
    session: Session,
    pair: Pair,
    folder: Path,
    command: str,
) -> int:
    """Measure, write page.json and page.md into the folder, print the table."""
    contests = [(method, length) for method in methods for length in (lengths if method.drafts else (0,))]
    found, stopped = _measure(plan, contests, session)
    if not found:
        return INTERRUPTED
    full = [
        {"method": cost.method, "num_draft_tokens": cost.num_draft_tokens} | cost.figures
        | {"turns": [asdict(turn) for turn in cost.turns]}
        for cost in found
    ]  # fmt: skip
    Sheet("page", "What the page costs a run", NOTES, table(found), full).write(plan, pair.device, folder, command)
    return INTERRUPTED if stopped else 0


def _measure(
    plan: Plan, contests: Sequence[tuple[MethodSpec, DraftLength]], session: Session
) -> tuple[list[Cost], bool]:
    """One method after the other; what is finished, and whether Ctrl-C ended it."""
    from cactus.ui.layout import build  # Gradio takes a second to import

    watched = Watched(session)
    demo = build(watched)
    found: list[Cost] = []
    with bar(len(contests) * (plan.repeat + 1)) as progress:
        try:
            for method, length in contests:
                progress.set_description_str(f"{method} m={length}" if length else str(method), refresh=False)
                turns = []
                for number in range(plan.repeat + 1):
                    turns.append(_turn(row_of(plan, method, length), watched, demo, page_first=number % 2 == 0))
                    progress.update()
                found.append(Cost(str(method), length, tuple(turns[1:])))
        except KeyboardInterrupt:
            return found, True
    return found, False


def row_of(plan: Plan, method: MethodSpec, length: DraftLength) -> list[Any]:
    """What the Playground's controls hold for this run."""
    own = {f"{method.name}.{name}": value for name, value in method.params.items()}
    values = settings.defaults() | own | {
        "pair": plan.pair, "method": method.name, "draft_length": 0 if length == AUTO else length or 1,
        "max_new_tokens": plan.max_new_tokens, "temperature": plan.temperature, "seed": plan.seed, "prompt": PROMPT,
    }  # fmt: skip
    return [values[key] for key in settings.control_keys()]


def _turn(row: Sequence[Any], watched: Watched, demo: Any, page_first: bool) -> Turn:
    """The run of these controls, both ways."""
    if page_first:
        paged, traffic = _paged(row, watched, demo)
        alone = _alone(row, watched)
    else:
        alone = _alone(row, watched)
        paged, traffic = _paged(row, watched, demo)
    if alone.tokens != paged.tokens or not alone.tokens:
        raise CactusError("the run through the page wrote other tokens than the one without it; nothing to compare")
    return Turn(alone, paged, traffic)


def _alone(row: Sequence[Any], watched: Watched) -> Passage:
    values = settings.as_values(row)

    def run() -> None:
        with watched.start(settings.to_request(values, {values["pair"]: ""})) as live:
            for _ in live:
                pass

    in_passing(run)
    return watched.passage


def in_passing(work: Callable[[], Any]) -> Any:
    """Done in a thread that ends with it.

    Every thread that uses the models leaves worker threads of OpenMP behind as long as it lives, and where there are
    more of those than processors they all wait more slowly. The page's models run in one such thread, and so they do
    here.
    """
    with ThreadPoolExecutor(1) as one:
        return one.submit(work).result()


def _paged(row: Sequence[Any], watched: Watched, demo: Any) -> tuple[Passage, Traffic]:
    with visited(demo) as visitor:
        traffic = visitor.run(row)
    return watched.passage, traffic


def table(found: Sequence[Cost]) -> list[tuple[str, ...]]:
    """Headings and one row a method."""
    head = (
        "method",
        "m",
        "tokens",
        "ms a token",
        "through the page",
        "page costs",
        "of the processor",
        "updates",
        "kB",
    )
    return [head, *(_line(cost) for cost in found)]


def _line(cost: Cost) -> tuple[str, ...]:
    own = cost.figures
    first, third = own["wall_cost_quartiles"]
    return (
        cost.method,
        str(cost.num_draft_tokens),
        str(own["tokens"]),
        f"{1000 * own['alone_seconds_per_token']:.2f}",
        f"{1000 * own['page_seconds_per_token']:.2f}",
        f"{own['wall_cost']:+.1%} ({first:+.1%} to {third:+.1%})",
        f"{own['processor_cost']:.1%}",
        f"{own['updates']:.0f}",
        f"{own['bytes'] / 1000:.0f}",
    )
