"""The theory lab: what it shows is the library's to all digits shown, for every rule, without a model."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import exact
import pytest
import torch
from ui_fakes import make_trace

from cactus import theory
from cactus.acceptance import RULES, make_rule
from cactus.divergence import DIVERGENCES, boosted_prob, kl, output_probs, taylor_boosted_prob, total_variation
from cactus.trace import Token
from cactus.ui import lab, lab_figures
from cactus.ui.desk import Desk
from cactus.ui.render import number as shown_number


def number(value: float) -> str:
    """As the page shows it: without the noise of the last bits."""
    return shown_number(round(value, 12) + 0.0)


def state(**changes) -> dict:
    """What the page sends when the lab opens."""
    told = json.loads(lab.opening())
    params = {rule["name"]: {p["name"]: p["default"] for p in rule["parameters"]} for rule in told["rules"]}
    curve = {parameter["name"]: parameter["default"] for parameter in told["curve"]}
    opened = {
        "rows": told["rows"], "drafted": told["drafted"], "params": params, "curve": curve, "quantity": "accept_probs",
    }  # fmt: skip
    return {**opened, **changes}


def text(cell) -> str:
    return cell if isinstance(cell, str) else cell["text"]


def texts(row) -> list[str]:
    return [text(cell) for cell in row]


def rows_of(sent: dict) -> tuple[torch.Tensor, torch.Tensor]:
    _, draft, verifier = zip(*sent["rows"], strict=True)
    return exact.rows(*draft) / sum(draft), exact.rows(*verifier) / sum(verifier)


def rules_of(sent: dict) -> list:
    return [make_rule(name, **sent["params"].get(name, {})) for name in RULES]


QUANTITIES = {
    "accept_probs": lambda rule, p, q, n: exact.accept_probs(rule, p, q),
    "adjusted_probs": lambda rule, p, q, n: rule.adjusted_probs(p, q, n),
    "recovery_probs": lambda rule, p, q, n: rule.recovery_probs(p, q, n),
    "output_probs": lambda rule, p, q, n: output_probs(rule, p, q),
}


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("preset", theory.PRESETS, ids=lambda preset: preset.name)
def test_the_matrix_shows_the_library_s_numbers(preset, quantity):
    rows = [list(row) for row in zip(preset.tokens, preset.draft_probs, preset.verifier_probs, strict=True)]
    sent = state(rows=rows, drafted=preset.drafted, quantity=quantity)
    p, q = rows_of(sent)
    shown = lab.derive(sent)["matrix"]["rows"]
    assert texts(shown[0])[1 : 1 + len(p)] == [number(x) for x in p.tolist()]
    assert texts(shown[1])[1 : 1 + len(p)] == [number(x) for x in q.tolist()]
    for rule, row in zip(rules_of(sent), shown[2:], strict=True):
        output = output_probs(rule, p, q)
        accepted = (p * exact.accept_probs(rule, p, q)).sum().item()
        expected = [number(x) for x in QUANTITIES[quantity](rule, p, q, preset.drafted).tolist()]
        expected += [number(accepted), number(kl(output, q).item()), number(total_variation(output, q).item())]
        assert texts(row)[1:] == expected, rule.name
        assert text(row[0]).startswith(rule.label)


def test_the_verdicts_show_the_rule_s_own_steps_and_bounds():
    sent = state(drafted=1)
    p, q = rows_of(sent)
    for rule, row in zip(rules_of(sent), lab.derive(sent)["verdicts"]["rows"], strict=True):
        steps = rule.judge(p[None], q[None], torch.tensor([1]))
        assert text(row[1]) == lab.READS[rule.reads]
        assert text(row[2]) == number(steps.boosted_prob.item())
        assert text(row[3]) == number(steps.accept_prob.item())
        spent = {
            "KL(h‖q)": kl(rule.adjusted_probs(p, q, 1), q).item(),
            "KL(output‖q)": kl(output_probs(rule, p, q), q).item(),
            "KL(q‖output)": kl(q, output_probs(rule, p, q)).item(),
        }
        bounds = {guarantee.of: guarantee.bound for guarantee in rule.guarantees(p, q)}
        for (name, value), shown in zip(spent.items(), row[4:], strict=True):
            assert text(shown) == number(value) + (f" ≤ {number(bounds[name])}" if name in bounds else "")
            assert name not in bounds or shown["kind"] == "bound"


def test_every_rule_and_every_declared_parameter_is_there():
    told = json.loads(lab.opening())
    declared = {rule.name: [p.name for p in rule.parameters] for rule in RULES.values() if rule.parameters}
    assert {rule["name"]: [p["name"] for p in rule["parameters"]] for rule in told["rules"]} == declared
    assert len(lab.derive(state())["matrix"]["rows"]) == 2 + len(RULES)


def test_a_moved_slider_moves_its_rule_alone():
    before, sent = state(), state()
    sent["params"]["cactus"]["delta"] = 0.0
    was, now = (lab.derive(sent)["matrix"]["rows"] for sent in (before, sent))
    changed = [index for index, (old, new) in enumerate(zip(was, now, strict=True)) if old != new]
    assert changed == [2 + list(RULES).index("cactus")]
    assert texts(now[changed[0]])[1:] == texts(now[2])[1:]  # δ = 0 is speculative sampling


def test_weights_are_normalised_and_it_says_so():
    scaled = [[name, 2 * p, q] for name, p, q in state()["rows"]]
    answer = lab.derive(state(rows=scaled))
    assert answer["matrix"] == lab.derive(state())["matrix"]
    assert ["Σp = 2.000, worked with", "p/Σp"] in answer["facts"]
    assert not any("Σq" in name for name, _ in answer["facts"])


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_the_curves_are_the_solvers(divergence):
    sent = state(curve={"delta": 0.5, "divergence": divergence})
    _, lift, cost = lab.derive(sent)["points"]
    q = exact.rows(*lift["1"]["x"])
    assert lift["1"]["y"] == boosted_prob(q, 0.5, divergence).tolist()
    assert lift["3"]["y"] == taylor_boosted_prob(q, 0.5).tolist()
    assert lift["4"] == {"x": [0.34], "y": [taylor_boosted_prob(0.34, 0.5).item()]}
    shaded = [high > best for high, best in zip(lift["2"]["y"], lift["1"]["y"], strict=True)]
    over = [spent is None or spent > 0.5 + 1e-9 for spent in cost["1"]["y"]]
    assert [a for a, b in zip(shaded, over, strict=True) if b] == [True] * sum(over)
    assert cost["3"]["y"] == ([math.log(2)] * 2 if divergence == "kl" else [])


def test_every_rule_is_a_point_or_named_as_infinitely_far():
    answer = lab.derive(state())
    rules = [name for group in answer["points"][0]["0"]["customdata"] for name in group.split(", ")]
    apart = answer["apart"].removeprefix("Infinitely far from q, so not in the figure: ").rstrip(".").split(", ")
    assert sorted([*rules, *filter(None, apart)]) == sorted(RULES)
    none = lab.derive(state(rows=[["a", 1.0, 0.0], ["b", 0.0, 1.0]], drafted=0))
    assert "lenience" not in none["apart"] and "tas" not in none["apart"]
    loose = state(rows=[["a", 0.9, 0.0], ["b", 0.1, 1.0]], drafted=0)
    loose["params"]["interp"]["alpha"] = 0.5
    assert lab.derive(loose)["apart"].endswith(": interp.")


def test_names_in_the_figure_cover_no_other():
    xs, ys = [0.1, 0.1, 0.11, 0.5], [0.5, 0.52, 0.5, 0.5]
    names = ["cactus", "cactus_exact", "mentored", "tas"]
    chosen = lab_figures.places(xs, ys, names)
    across, up = lab_figures.PLANE[0] / 0.64, lab_figures.PLANE[1] / 1.15
    boxes = [
        lab_figures._box(x * across, y * up, 5.6 * len(name), *lab_figures.SHIFTS[place])
        for x, y, name, place in zip(xs, ys, names, chosen, strict=True)
    ]
    assert not any(lab_figures._overlap(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [["a", 1.0, 1.0]]}, "2 to 12 are allowed"),
        ({"rows": [["a", -1, 1.0], ["b", 1, 1]]}, "draft of token 1 is -1"),
        ({"rows": [["a", 0, 1.0], ["b", 0, 1]]}, "draft is 0 everywhere"),
        ({"params": {"cactus": {"delta": 11}}}, "delta must be a number between 0 and 10"),
        ({"params": {"cactus": {"nonsense": 1}}}, "cactus has no parameter 'nonsense'"),
        ({"curve": {"delta": -1, "divergence": "kl"}}, "delta must be"),
        ({"curve": {"delta": 1, "divergence": "x"}}, "divergence must be one of"),
        ({"quantity": "__class__"}, "quantity must be one of"),
        ({"drafted": 9}, "drafted is 9"),
        ({"rows": None}, "not a state of the lab"),
        ({"params": 3}, "not a state of the lab"),
    ],
)
def test_what_cannot_be_worked_out_is_said(change, message):
    answer = lab.derive(state(**change))
    assert list(answer) == ["error"] and message in answer["error"]


def test_hostile_names_stay_data():
    answer = lab.derive(state(rows=[["<img src=x>", 0.5, 0.5], [" ${a}", 0.5, 0.5]]))
    assert texts(answer["matrix"]["head"])[1:3] == ["▸ <img src=x>", '" ${a}"']
    position = theory.Position(("</script>", "b"), (0.5, 0.5), (0.5, 0.5), (False, False), (False, True), 0)
    opening = lab.opening(position)
    assert "<" not in opening and json.loads(opening)["rows"][0][0] == "</script>"
    assert "1 probabilities were not recorded" in json.loads(opening)["note"]


def picked(trace, index) -> tuple:
    desk = Desk()
    desk.visit("a").show.trace = trace
    request, event = SimpleNamespace(session_hash="a"), SimpleNamespace(_data={"index": index})
    return lab.LabHandlers(desk).pick(request, event)


def test_a_token_of_the_run_goes_to_the_lab():
    trace = make_trace(count=4)
    tokens: list[Token] = [token for round_ in trace.rounds for token in round_.tokens]
    index = next(i for i, token in enumerate(tokens) if token.judged)
    opening, tabs, said = picked(trace, index)
    told, position = json.loads(opening), theory.position(tokens[index])
    assert [row[0] for row in told["rows"]] == list(position.tokens)
    assert [row[1] for row in told["rows"]] == list(position.draft_probs)
    assert [row[2] for row in told["rows"]] == list(position.verifier_probs)
    assert told["drafted"] == position.drafted and told["rows"][told["drafted"]][0] == tokens[index].text
    assert tabs.selected == "lab" and "value" not in said


@pytest.mark.parametrize("index", [-1, 9999, "0", None])
def test_a_token_that_is_not_there_is_said(index):
    opening, _, said = picked(make_trace(count=4), index)
    assert not isinstance(opening, str) and "is not in the run" in json.loads(said)["note"]


def test_a_run_that_goes_on_sends_nothing_yet():
    assert "run that has ended" in json.loads(picked(None, 0)[2])["note"]
