"""Records of a run → lines of JSON that the page appends, and rows of a table.

Only numbers already in the trace are formatted here; none is computed. Text of a model is data all the way: the
browser sets it as text, and `<` is escaped so that no layer between can read it as markup.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from cactus.metrics import Metrics
from cactus.trace import Round, Token, TopToken, Trace
from cactus.whatif import lossless_accept_prob

LABELS = (
    "draft probability p",
    "verifier probability q",
    "boosted to γ*",
    "accept probability",
    "random number u",
    "verifier entropy, nats",
    "KL(h‖q), nats",
    "KL(output‖q), nats",
)
FIELDS = (
    "draft_prob",
    "verifier_prob",
    "boosted_prob",
    "accept_prob",
    "uniform",
    "entropy",
    "kl",
    "output_kl",
)
FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
WORTH_SAYING = 0.5  # seconds
ENDINGS = {
    "stop": "the model ended its text",
    "length": "token limit reached",
    "context": "context full",
    "cancelled": "stopped",
    "time": "time limit reached",
    "error": "an error ended it",
}


def line(record: dict[str, Any]) -> str:
    """One record as a line that is inert in HTML and in scripts, in ASCII: a character takes one byte in memory, where
    a single emoji would make it four for the whole text, which is copied at every update.
    """
    return json.dumps(record, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c") + "\n"


def number(value: float | None) -> str | None:
    """A probability or a divergence for the eye, never rounded to 0 or 1 unless it is."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if value in (0.0, 1.0):
        return f"{value:.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    if 0.999 < value < 1:
        return f"{value:.6f}" if value < 0.9999995 else ">0.999999"
    return f"{value:.3f}"


WATCHED = {
    "accepted": "accepted by the server, which does not tell the numbers it compared",
    "recovered": "drawn in place of a rejected token, which the server does not tell",
}
"""What happened to the tokens of a round that was watched from outside."""


def comparison(uniform: float, accept_prob: float) -> str:
    """`u = 0.42 < 0.71`, with as many digits as it takes to see which is larger."""
    sign = "<" if uniform < accept_prob else "≥"
    for digits in range(2, 18):
        left, right = f"{uniform:.{digits}f}", f"{accept_prob:.{digits}f}"
        if left != right or uniform == accept_prob:
            return f"u = {left} {sign} {right}"
    return f"u = {uniform!r} {sign} {accept_prob!r}"


def verdict(token: Token, round_: Round) -> str:
    """What happened to a token, in words."""
    if token.uniform is not None and token.accept_prob is not None:
        return f"{comparison(token.uniform, token.accept_prob)}: {token.status}"
    if round_.watched and token.status in WATCHED:
        return WATCHED[token.status]
    if token.status == "discarded":
        judged = any(other.status == "rejected" for other in round_.tokens)
        return "drafted behind a rejection, never judged" if judged else "drafted behind the end of the text"
    return {
        "recovered": "drawn from the recovery distribution in place of the rejected token",
        "bonus": f"all {round_.num_draft_tokens} drafted tokens passed: one more from the verifier",
    }.get(token.status, "sampled by the verifier, nothing drafted")


def explanation(token: Token, round_: Round, place: int) -> str:
    """The verdict spelled out: where the token stands, the numbers compared, and what speculative sampling had said.

    `place`: the token's index in its round.
    """
    drafted = token.status in ("accepted", "rejected", "discarded")
    where = f"Round {round_.index + 1}" + (f", draft {place + 1} of {round_.num_draft_tokens}" if drafted else "")
    if token.uniform is None or token.accept_prob is None:
        return f"{where}: {verdict(token, round_)}."
    told = f"{where}: {comparison(token.uniform, token.accept_prob)}{_ratio(token)}: {token.status}."
    lossless = lossless_accept_prob(token)
    if lossless is None or math.isclose(lossless, token.accept_prob, rel_tol=1e-4):
        return told
    otherwise = "accepted" if token.uniform < lossless else "rejected"
    return f"{told} Speculative sampling: {comparison(token.uniform, lossless)}: {otherwise}."


def _ratio(token: Token) -> str:
    """Where the accept probability came from, if from γ*/p."""
    if not token.draft_prob or token.boosted_prob is None or token.accept_prob is None:
        return ""
    ratio = token.boosted_prob / token.draft_prob
    if ratio >= 1 or not math.isclose(ratio, token.accept_prob, rel_tol=1e-4):
        return ""
    return f" = γ*/p = {number(token.boosted_prob)}/{number(token.draft_prob)}"


def token_record(token: Token, round_: Round, place: int) -> list[Any]:
    """What the page keeps of a token: text, status, place, verdict, numbers, top tokens of both models, explanation."""
    return [
        token.text,
        token.status,
        token.position + 1,
        verdict(token, round_),
        [number(getattr(token, name)) for name in FIELDS],
        _bars(token.top_draft),
        _bars(token.top_verifier),
        explanation(token, round_, place),
    ]


def _bars(top: tuple[TopToken, ...]) -> list[list[Any]]:
    return [[entry.text, round(entry.prob, 5), number(entry.prob)] for entry in top[:5]]


def run_line(run_id: str) -> str:
    """The first line of a run: it tells the page to start afresh."""
    return line({"run": run_id})


def wait_line(share: float | None, message: str) -> str:
    """What is being done before the first round can begin."""
    return line({"wait": message, "share": share})


def header_line(header: Trace) -> str:
    """The settings of a run, and what its tokens' numbers are called."""
    return line({"facts": facts(header), "labels": LABELS})


def turns_line(turns: Sequence[tuple[str, str]]) -> str:
    """What was said before: role and text of each turn."""
    return line({"turns": turns})


def round_line(round_: Round, marks: Iterable[int]) -> str:
    """A round and its tokens, each with a mark of `thoughts`."""
    tokens = [
        [*token_record(token, round_, place), mark]
        for place, (token, mark) in enumerate(zip(round_.tokens, marks, strict=True))
    ]
    return line({"round": round_.index + 1, "tokens": tokens})


def end_line(summary: str, failed: bool = False, parts: int | None = None) -> str:
    """The last line of a run: what came of it, in one sentence; `parts`: the first token that another run has not."""
    return line({"end": summary, "failed": failed} | ({} if parts is None else {"parts": parts + 1}))


def facts(header: Trace) -> str:
    """The settings and the machine behind a run, in one line."""
    params = [f"{name} = {value:g}" if not isinstance(value, str) else value for name, value in header.params.items()]
    parts = [header.pair, " ".join([header.method, *params])]
    if header.num_draft_tokens:
        parts.append(f"m = {header.num_draft_tokens}")
    parts += [f"temperature {header.sampling.get('temperature', '?'):g}"] if "temperature" in header.sampling else []
    parts.append(reading(header))
    held = header.versions.get("draft weights")
    parts += [f"seed {header.seed}", f"{header.device}, {header.dtype}" + (f", drafter {held}" if held else "")]
    parts += filter(None, [header.versions.get("caches")])
    if header.baseline:
        baseline = header.baseline
        parts.append(f"verifier alone {baseline.seconds_per_token * 1000:.1f} ms/token ({baseline.how})")
    return " · ".join(parts)


def reading(header: Trace) -> str:
    """How much of the prompt was read, and how much had been in the turn before."""
    kept = f", {header.cached_tokens} kept from the turn before" if header.cached_tokens else ""
    return f"read {header.prompt_tokens - header.cached_tokens} {'raw ' if header.raw else ''}prompt tokens{kept}"


def summary(trace: Trace, metrics: Metrics) -> str:
    """One sentence at the end of a run."""
    ending = ENDINGS.get(trace.stop_reason or "", "unfinished")
    parts = [f"{metrics.generated_tokens} tokens in {metrics.rounds} rounds: {ending}."]
    if metrics.speedup is not None and trace.num_draft_tokens:
        slower = ", slower" if metrics.speedup < 1 else ""
        parts.append(f"{metrics.speedup:.2f}× the verifier alone{slower}.")
    if metrics.accepted_length is not None:
        of = "" if trace.num_draft_tokens == "auto" else f" of {trace.num_draft_tokens}"
        parts.append(f"Mean accepted length {metrics.accepted_length:.2f}{of}.")
    if trace.timings.waiting_seconds >= WORTH_SAYING:
        parts.append(f"Waited {trace.timings.waiting_seconds:.1f} s for other runs, which counts nowhere.")
    return " ".join(parts)


def to_csv(trace: Trace) -> str:
    """One row a token, emitted or not; texts that a spreadsheet would run as a formula are quoted."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["round", "position", "status", "id", "text", *FIELDS])
    for round_ in trace.rounds:
        for token in round_.tokens:
            numbers = [getattr(token, name) for name in FIELDS]
            writer.writerow([round_.index, token.position, token.status, token.id, _cell(token.text), *numbers])
    return table.getvalue()


def _cell(text: str) -> str:
    starts_formula = text.lstrip().startswith(FORMULA_STARTS) or text.startswith(("\t", "\r", "\n"))
    return "'" + text if starts_formula else text
