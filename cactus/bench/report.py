"""A finished or stopped benchmark as one record, and that record as JSON, CSV, Markdown and a terminal table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cactus.bench.machine import in_words
from cactus.bench.measurement import Measurement
from cactus.bench.summary import SHARES, Row, Spread, Versus
from cactus.settings import AUTO

HOW = (
    "Each prompt is answered by all contestants in turn before the next one comes, the first one changing; every "
    "contestant is warmed up before it counts. Medians over prompts (over repeats first), quartiles in brackets.",
    "tokens/s: generated tokens ÷ seconds of drafting, verifying and judging; prefill, the baseline's own steps and "
    "the writing of the trace excluded. wall tokens/s: the writing of the trace and all else between prefill and end "
    "included; comparisons with other libraries use it.",
    "speedup: seconds per token of the verifier alone ÷ seconds per token of the run; the verifier alone is the "
    "median of single-token steps timed right before and after every run, in this process, on its own text. race: "
    "wall tokens/s ÷ those of the plain decoding of the same library in this benchmark, on the same prompt.",
    "ideal: (AL + 1)/(1 + m·c) with the measured c = draft step ÷ verifier step, a formula and no measurement; of "
    "ideal: speedup ÷ ideal. AL: accepted drafted tokens a round; tokens a round: AL + 1 but for rounds that a stop "
    "cut.",
    "by kind of prompt: ours by the measured speedup, other libraries over their own plain decoding.",
)


@dataclass(frozen=True)
class Report:
    """Everything a reader needs to judge and repeat the benchmark.

    done, planned: conversations; skipped: prompts and contestants left out, with the reason; partial: whether rows
    rest on prompts that not all contestants have answered. unequal: (contestant, prompt) whose repeats differ.
    """

    command: str
    date: str
    pair: str
    loaded: str
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    done: int
    planned: int
    skipped: dict[str, str]
    partial: bool
    rows: Sequence[Row]
    versus: Sequence[Versus]
    automatic: Sequence[Versus]
    notes: Sequence[str]
    unequal: Sequence[tuple[str, str]]
    repeats: int

    @property
    def finished(self) -> bool:
        return self.done >= self.planned


@dataclass(frozen=True)
class Column:
    """One column of every table. `show`: how a value is written for people."""

    name: str
    value: Callable[[Row], Spread | None]
    show: str = "{:.2f}"


COLUMNS = (
    Column("AL", lambda row: row.accepted_length),
    Column("tokens/round", lambda row: row.tokens_per_round),
    Column("tokens/s", lambda row: row.tokens_per_second, "{:.1f}"),
    Column("wall tokens/s", lambda row: row.wall_tokens_per_second, "{:.1f}"),
    Column("speedup", lambda row: row.speedup, "{:.2f}×"),
    Column("race", lambda row: row.race_speedup, "{:.2f}×"),
    Column("ideal", lambda row: row.ideal_speedup, "{:.2f}×"),
    Column("of ideal", lambda row: row.closeness, "{:.0%}"),
    Column("KL(output‖q)", lambda row: row.mean_output_kl),
)


def to_json(report: Report, measurements: Sequence[Measurement]) -> str:
    """The whole record; per measured conversation what the medians were taken over."""
    record = asdict(report) | {"finished": report.finished, "how": HOW}
    record["rows"] = [asdict(row) | {"key": row.label.key} for row in report.rows]
    record["measurements"] = [_brief(item) for item in measurements]
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def _brief(item: Measurement) -> dict[str, Any]:
    names = ("contestant", "prompt", "repeat", "seed", "digest", "generated_tokens", "stop_reasons")
    numbers = {"tokens_per_second": item.tokens_per_second, "wall_tokens_per_second": item.wall_tokens_per_second}
    numbers |= {name: item.metric(name) for name in ("speedup", "ideal_speedup", "accepted_length")}
    return {name: getattr(item, name) for name in names} | numbers | ({"error": item.error} if item.error else {})


def to_csv(rows: Sequence[Row]) -> str:
    """One line for each contestant; medians with quartiles beside them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    spreads = [f"{column.name}{suffix}" for column in COLUMNS for suffix in ("", " low quartile", " high quartile")]
    head = ["family", "method", "setting", "m", "best", "prompts", "runs", *spreads, "mean tokens of a text"]
    writer.writerow([*head, *(f"share {name}" for name in SHARES)])
    for row in rows:
        label = row.label
        values: list[Any] = [label.family, label.method, label.setting, label.num_draft_tokens, int(row.best)]
        values += [row.prompts, row.runs]
        for column in COLUMNS:
            found = column.value(row)
            values += [found.median, found.low, found.high] if found else ["", "", ""]
        values += [row.mean_text_tokens, *(row.shares.get(name, "") for name in SHARES)]
        writer.writerow(values)
    return out.getvalue()


def cell(column: Column, row: Row, with_quartiles: bool = False) -> str:
    """One value as people read it; a dash where it is not defined."""
    found = column.value(row)
    if found is None:
        return "–"
    text = column.show.format(found.median)
    if with_quartiles and found.count > 1:
        text += f" ({column.show.format(found.low)}–{column.show.format(found.high)})"
    return text


def is_choice(row: Row, rows: Sequence[Row]) -> bool:
    """Whether it is the fastest of several settings of its method."""
    method = row.label.family, row.label.method
    return row.best and sum((other.label.family, other.label.method) == method for other in rows) > 1


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Head and rows for a terminal; the fastest setting of each method has a star."""
    head = ("", "contestant", *(column.name for column in COLUMNS), *SHARES[:3], "else", "text")
    lines = [head]
    for row in rows:
        star = "*" if is_choice(row, rows) else ""
        parts = [f"{row.shares[name]:.0%}" if row.shares else "–" for name in SHARES]
        cells = [cell(column, row) for column in COLUMNS]
        lines.append((star, row.label.key, *cells, *parts, f"{row.mean_text_tokens:.0f}"))
    return lines


def to_markdown(report: Report, images: Sequence[str] = ()) -> str:
    """The report for reading. `images`: names of the plots that lie beside it."""
    parts = ["# Benchmark", *_circumstances(report), "## Results", _results(report.rows)]
    if report.automatic:
        parts += ["## Automatic draft length against the best fixed one", _versus(report.automatic)]
    if report.versus:
        parts += ["## Against other libraries", _versus(report.versus)]
    parts += ["## Where the time goes", _shares(report.rows)]
    parts += ["## Acceptance by draft position", _positions(report.rows)]
    parts += ["## Speedup by kind of prompt", _kinds(report.rows)]
    if images:
        parts += ["## Plots", *(f"![{name}]({name})" for name in images), "All of them, interactive: `plots.html`."]
    notes = [*HOW, *report.notes]
    parts += ["## How it was measured", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _circumstances(report: Report) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    stopped = "" if report.finished else ", **stopped**"
    lines = [
        f"- pair: {report.pair}; {report.loaded}",
        f"- machine: {in_words(report.machine)}",
        f"- versions: {versions}",
        f"- settings: {settings}",
        f"- date: {report.date}",
        f"- {report.done:,} of {report.planned:,} conversations measured{stopped}",
        f"- {equality(report)}",
    ]
    if report.partial:
        lines.append("- **no prompt was answered by all contestants yet: rows rest on different prompts**")
    lines += [f"- left out: {prompt} ({reason})" for prompt, reason in report.skipped.items()]
    return [f"```\n{report.command}\n```", "\n".join(lines)]


def equality(report: Report) -> str:
    """Whether equal seeds gave equal tokens."""
    if report.repeats < 2:
        return "one repeat only: that equal seeds give equal tokens was not checked"
    automatic = any(row.label.num_draft_tokens == AUTO for row in report.rows)
    besides = f" ({AUTO} left out: it goes by measured times, so its drafts may differ)" if automatic else ""
    if not report.unequal:
        return f"equal seeds gave equal tokens in every repeat{besides}"
    named = "; ".join(f"{contestant} on {prompt}" for contestant, prompt in report.unequal[:5])
    return f"**equal seeds did not give equal tokens** in {len(report.unequal)} cases{besides}: {named}"


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


def _results(rows: Sequence[Row]) -> str:
    head = ["contestant", *(column.name for column in COLUMNS), "prompts", "tokens of a text"]
    lines = []
    for row in rows:
        name = f"**{row.label.key}** (best)" if is_choice(row, rows) else row.label.key
        cells = [cell(column, row, with_quartiles=True) for column in COLUMNS]
        lines.append([name, *cells, str(row.prompts), f"{row.mean_text_tokens:.0f}"])
    return _markdown_table(head, lines)


def _versus(versus: Sequence[Versus]) -> str:
    head = ["this", "against", "wall tokens/s, ratio on the same prompt", "prompts"]
    rows = [
        [item.ours, item.peer, f"{item.ratio.median:.2f}× ({item.ratio.low:.2f}–{item.ratio.high:.2f})",
         str(item.ratio.count)]
        for item in versus
    ]  # fmt: skip
    return _markdown_table(head, rows)


def _shares(rows: Sequence[Row]) -> str:
    head = ["contestant", *SHARES]
    lines = [[row.label.key, *(f"{row.shares[name]:.1%}" for name in SHARES)] for row in rows if row.shares]
    return _markdown_table(head, lines)


def _positions(rows: Sequence[Row]) -> str:
    """Accepted of those judged there; behind a rejection nothing is judged."""
    drafting = [row for row in rows if row.positions]
    longest = max((len(row.positions) for row in drafting), default=0)
    head = ["contestant", *(str(position) for position in range(1, longest + 1))]
    lines = []
    for row in drafting:
        rates = [count.acceptance_rate for count in row.positions]
        cells = ["–" if rate is None else f"{rate:.0%}" for rate in rates]
        lines.append([row.label.key, *cells, *([""] * (longest - len(cells)))])
    return _markdown_table(head, lines) if lines else "Nothing was drafted."


def _kinds(rows: Sequence[Row]) -> str:
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.kinds))
    chosen = [row for row in rows if row.best and row.kinds]
    lines = [
        [row.label.key, *(f"{row.kinds[kind].median:.2f}×" if kind in row.kinds else "–" for kind in kinds)]
        for row in chosen
    ]
    return _markdown_table(["contestant", *kinds], lines)
