"""The record of `bench --steps` in words: a table, verdicts, Markdown."""

from __future__ import annotations

from typing import Any

from cactus.bench.machine import in_words
from cactus.bench.step_times import TRIALS
from cactus.bench.ways import GRAPHS, LAUNCHED, STATIC


def rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Milliseconds by step and way, and the share of the bandwidth that the fastest way reached."""
    names = [name for name in (LAUNCHED, STATIC, GRAPHS) if any(name in step["seconds"] for step in record["steps"])]
    lines = [
        (
            f"{step['model']} {step['width']}",
            *(f"{1000 * step['seconds'][name]:.3f}" if name in step["seconds"] else "–" for name in names),
            f"{step['bandwidth_share']:.0%}",
        )
        for step in record["steps"]
    ]
    return [("step", *(f"{name} ms" for name in names), "of the bandwidth"), *lines]


def verdicts(record: dict[str, Any]) -> list[str]:
    """One line for each check against the CPU."""
    return [
        f"{'equal' if item['passed'] else 'NOT EQUAL'}: {item['model']} in float32 ({item['layers']}), logits within "
        f"{item['difference']:.1e} standard deviations, {item['equal']} of {item['tokens']} greedy tokens"
        for item in record["checks"]
    ]


def to_markdown(record: dict[str, Any]) -> str:
    """The report for reading."""
    head, *lines = rows(record)
    sizes = ", ".join(f"{name} {count / 1e6:,.0f} M parameters" for name, count in record["parameters"].items())
    facts = [
        f"- pair: {record['pair']}, {record['weights']}, {record['dtype']}; {sizes}",
        f"- machine: {in_words(record['machine'])}; a large copy moves {record['bandwidth'] / 1e9:,.0f} GB/s",
        f"- versions: {', '.join(f'{name} {version}' for name, version in record['versions'].items())}",
        f"- date: {record['date']}",
        *(f"- against the CPU: {line}" for line in verdicts(record)),
        f"- a step: tokens fed behind a text of {record['text_tokens']}, logits of all of them; medians of {TRIALS}. "
        "Of the bandwidth: time that reading the weights once takes at it ÷ time of the fastest way.",
    ]
    body = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *lines])
    return "\n\n".join(["# Steps", f"```\n{record['command']}\n```", "\n".join(facts), body]) + "\n"
