"""Measurements → one row for each contestant: medians over prompts with their quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from cactus.bench.contest import OURS, Label
from cactus.bench.measurement import Measurement
from cactus.metrics import PositionCount, ratio
from cactus.settings import AUTO

SHARES = ("drafting", "verifying", "judging", "everything else")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over `count` prompts."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """None where no value is defined."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return None
    low, median, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Spread(median, low, high, len(found))


@dataclass(frozen=True)
class Row:
    """What one contestant reached. Fields a peer cannot have (it leaves no trace) are None or empty.

    speedup: over the verifier's single steps timed around each run (design: the measured speedup). race_speedup: over
    the plain decoding of the same family in this benchmark, on the same prompt in the same repeat. closeness: speedup
    ÷ ideal speedup. shares: of the run's wall time without prefill and baseline. best: fastest of its method.
    """

    label: Label
    prompts: int
    runs: int
    tokens_per_second: Spread | None
    wall_tokens_per_second: Spread | None
    prefill_seconds: Spread | None
    speedup: Spread | None
    race_speedup: Spread | None
    ideal_speedup: Spread | None
    closeness: Spread | None
    accepted_length: Spread | None
    tokens_per_round: Spread | None
    acceptance_rate: Spread | None
    mean_output_kl: Spread | None
    text_tokens: Spread | None
    mean_text_tokens: float
    shares: dict[str, float]
    positions: tuple[PositionCount, ...]
    kinds: dict[str, Spread]
    best: bool = False


Value = Callable[[Measurement], float | None]


def complete(measurements: Sequence[Measurement], labels: Sequence[Label]) -> list[Measurement]:
    """The measurements of those prompts and repeats that all contestants have answered.

    One that has answered nothing at all is not waited for.
    """
    keys = {label.key for label in labels} & {item.contestant for item in measurements if not item.error}
    seen: dict[tuple[str, int], set[str]] = {}
    for item in measurements:
        if not item.error:
            seen.setdefault((item.prompt, item.repeat), set()).add(item.contestant)
    return [item for item in measurements if not item.error and seen[item.prompt, item.repeat] >= keys]


def summarize(measurements: Sequence[Measurement], labels: Sequence[Label]) -> list[Row]:
    """One row for each contestant, in their order, the fastest setting of each method marked."""
    races = _plain_rates(measurements, labels)
    by_key: dict[str, list[Measurement]] = {label.key: [] for label in labels}
    for item in measurements:
        if item.contestant in by_key:
            by_key[item.contestant].append(item)
    rows = [_row(label, by_key[label.key], races.get(label.family, {})) for label in labels if by_key[label.key]]
    return _marked(rows)


def _row(label: Label, items: Sequence[Measurement], plain: dict[tuple[str, int], float]) -> Row:
    def over_prompts(value: Value) -> Spread | None:
        return spread(per_prompt(items, value).values())

    def race(item: Measurement) -> float | None:
        return ratio(item.wall_tokens_per_second, plain.get((item.prompt, item.repeat)))

    lengths = [item.generated_tokens for item in items if item.repeat == 0] or [it.generated_tokens for it in items]
    by_kind = {kind: [item for item in items if item.kind == kind] for kind in dict.fromkeys(it.kind for it in items)}
    pace: Value = (lambda item: item.metric("speedup")) if label.family == OURS else race
    kinds = {kind: spread(per_prompt(chosen, pace).values()) for kind, chosen in by_kind.items()}
    return Row(
        label=label,
        prompts=len({item.prompt for item in items}),
        runs=len(items),
        tokens_per_second=over_prompts(lambda item: item.tokens_per_second),
        wall_tokens_per_second=over_prompts(lambda item: item.wall_tokens_per_second),
        prefill_seconds=over_prompts(lambda item: item.prefill_seconds),
        speedup=over_prompts(lambda item: item.metric("speedup")),
        race_speedup=over_prompts(race),
        ideal_speedup=over_prompts(lambda item: item.metric("ideal_speedup")),
        closeness=over_prompts(lambda item: ratio(item.metric("speedup"), item.metric("ideal_speedup"))),
        accepted_length=over_prompts(lambda item: item.metric("accepted_length")),
        tokens_per_round=over_prompts(lambda item: ratio(item.timed_tokens, item.rounds)),
        acceptance_rate=over_prompts(lambda item: item.metric("acceptance_rate")),
        mean_output_kl=over_prompts(lambda item: item.metric("mean_output_kl")),
        text_tokens=over_prompts(lambda item: item.generated_tokens),
        mean_text_tokens=statistics.fmean(lengths),
        shares=shares(items),
        positions=positions(items),
        kinds={kind: found for kind, found in kinds.items() if found is not None},
    )


def per_prompt(items: Iterable[Measurement], value: Value) -> dict[str, float]:
    """Prompt → the median over its repeats; prompts where nothing is defined are left out."""
    found: dict[str, list[float]] = {}
    for item in items:
        number = value(item)
        if number is not None:
            found.setdefault(item.prompt, []).append(number)
    return {prompt: statistics.median(numbers) for prompt, numbers in found.items()}


def shares(items: Sequence[Measurement]) -> dict[str, float]:
    """Where the wall time of all runs went; they add up to 1."""
    total = sum(item.wall_seconds for item in items)
    if not total or any(item.metrics is None for item in items):
        return {}
    known = [sum(item.metric(f"{part}_seconds") for item in items) for part in ("draft", "verify", "judge")]
    return dict(zip(SHARES, [part / total for part in (*known, total - sum(known))], strict=True))


def positions(items: Iterable[Measurement]) -> tuple[PositionCount, ...]:
    """Counts by draft position over all runs of the first repeat (equal seeds: the others count the same again)."""
    sums: dict[int, list[int]] = {}
    for item in items:
        for count in (item.metric("positions") or ()) if item.repeat == 0 else ():
            numbers = [count[name] for name in ("drafted", "judged", "accepted")]
            old = sums.get(count["position"], [0, 0, 0])
            sums[count["position"]] = [a + b for a, b in zip(old, numbers, strict=True)]
    return tuple(PositionCount(position, *numbers) for position, numbers in sorted(sums.items()))


def _plain_rates(
    measurements: Iterable[Measurement], labels: Iterable[Label]
) -> dict[str, dict[tuple[str, int], float]]:
    """Family → (prompt, repeat) → wall tokens per second of its plain decoding (the label that drafts nothing)."""
    families = {label.key: label.family for label in labels if label.num_draft_tokens == 0}
    rates: dict[str, dict[tuple[str, int], float]] = {}
    for item in measurements:
        if item.contestant in families and item.wall_tokens_per_second is not None:
            cell = item.prompt, item.repeat
            rates.setdefault(families[item.contestant], {})[cell] = item.wall_tokens_per_second
    return rates


def _marked(rows: list[Row]) -> list[Row]:
    fastest: dict[tuple[str, str], Row] = {}
    for row in rows:
        method = row.label.family, row.label.method
        if method not in fastest or pace(row) > pace(fastest[method]):
            fastest[method] = row
    return [replace(row, best=row is fastest[row.label.family, row.label.method]) for row in rows]


def pace(row: Row) -> float:
    """What "fastest" goes by: the measured speedup, for a peer its speedup over its own plain decoding."""
    found = row.speedup or row.race_speedup or row.wall_tokens_per_second
    return found.median if found else 0.0


@dataclass(frozen=True)
class Versus:
    """Ours against a peer's: the ratio of wall tokens per second on the same prompt, medians over prompts."""

    ours: str
    peer: str
    ratio: Spread


def against_peers(measurements: Sequence[Measurement], rows: Sequence[Row]) -> list[Versus]:
    """Every method of ours at its best against every method of a peer's at its best."""
    ours = [row.label for row in rows if row.best and row.label.family == OURS]
    peers = [row.label for row in rows if row.best and row.label.family != OURS]
    found = []
    for peer in peers:
        for own in ours:
            if values := _ratios(measurements, own, peer):
                found.append(Versus(own.key, peer.key, values))
    return found


def automatic_against_fixed(measurements: Sequence[Measurement], rows: Sequence[Row]) -> list[Versus]:
    """The automatic draft length of each method against its fastest fixed one."""
    found = []
    for row in rows:
        if row.label.num_draft_tokens != AUTO:
            continue
        same = [other for other in rows if (other.label.family, other.label.method) == (OURS, row.label.method)]
        fixed = [other for other in same if other is not row]
        if fixed and (values := _ratios(measurements, row.label, (best := max(fixed, key=pace)).label)):
            found.append(Versus(row.label.key, best.label.key, values))
    return found


def _ratios(measurements: Sequence[Measurement], ours: Label, other: Label) -> Spread | None:
    """Wall tokens per second of one ÷ the other's, prompt by prompt."""
    mine, theirs = (
        per_prompt(
            (item for item in measurements if item.contestant == label.key), lambda it: it.wall_tokens_per_second
        )
        for label in (ours, other)
    )
    return spread(mine[prompt] / theirs[prompt] for prompt in mine.keys() & theirs.keys())


def unequal_repeats(measurements: Iterable[Measurement], labels: Iterable[Label]) -> list[tuple[str, str]]:
    """(contestant, prompt) whose repeats with the same seed did not give the same tokens.

    An automatic draft length is left out: it goes by measured times, and so do its drafts.
    """
    steady = {label.key for label in labels if label.num_draft_tokens != AUTO}
    seen: dict[tuple[str, str], set[str]] = {}
    for item in measurements:
        if not item.error and item.contestant in steady:
            seen.setdefault((item.contestant, item.prompt), set()).add(item.digest)
    return sorted(key for key, digests in seen.items() if len(digests) > 1)
