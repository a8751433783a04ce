"""Controls, link and checks come from one declaration."""

from __future__ import annotations

import math
from urllib.parse import parse_qsl

import pytest

from cactus.acceptance import RULES
from cactus.ui import settings

PAIRS = {"smollm2-135m": "", "other": "", "huge": "Huge cannot be used here: it needs 80 GB"}


def values(**changes):
    return settings.defaults() | {"prompt": "hello"} | changes


def link(chosen):
    return settings.from_query(dict(parse_qsl(settings.to_query(chosen), keep_blank_values=True)), PAIRS)


def test_every_declared_parameter_has_a_control():
    keys = settings.control_keys()
    for rule in RULES.values():
        for parameter in rule.parameters:
            assert f"{rule.name}.{parameter.name}" in keys
    assert len(keys) == len(set(keys)) == len(settings.defaults())


def test_element_ids():
    methods = settings.methods()
    cactus, tas = methods["cactus"], methods["tas"]
    assert [cactus.elem_id(parameter) for parameter in cactus.parameters] == ["delta"]
    assert [tas.elem_id(parameter) for parameter in tas.parameters] == ["tas-epsilon", "tas-alpha"]
    ids = [method.elem_id(parameter) for method in methods.values() for parameter in method.parameters]
    assert len(ids) == len(set(ids))


def test_delta_has_a_fine_scale():
    delta = settings.methods()["cactus"].parameters[0]
    assert delta.minimum == 0 and delta.step <= 0.05


def test_request_carries_the_settings():
    chosen = values(**{"cactus.delta": 0.3, "draft_length": 7, "seed": "", "top_k": 40, "system": "Be brief."})
    request = settings.to_request(chosen, PAIRS)
    assert (request.method, dict(request.params)) == ("cactus", {"delta": 0.3})
    assert (request.num_draft_tokens, request.seed, request.system) == (7, None, "Be brief.")
    assert (request.sampling.temperature, request.sampling.top_k) == (0.7, 40)


def test_every_method_makes_a_request():
    for name in settings.methods():
        assert settings.to_request(values(method=name), PAIRS).method == name
    assert settings.to_request(values(method=settings.VERIFIER_ONLY), PAIRS).rule is None


def test_a_draft_length_of_0_is_automatic():
    assert settings.to_request(values(draft_length=0, prompt="Hi"), PAIRS).num_draft_tokens == "auto"
    assert link(values(draft_length=0))[0]["draft_length"] == 0


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("prompt", ""),
        ("prompt", " \n "),
        ("prompt", None),
        ("prompt", "x" * 100_001),
        ("cactus.delta", -1),
        ("cactus.delta", math.nan),
        ("cactus.delta", "much"),
        ("cactus.delta", None),
        ("draft_length", -1),
        ("draft_length", 50),
        ("draft_length", 2.5),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_p", 0),
        ("top_k", -1),
        ("max_new_tokens", 0),
        ("max_new_tokens", 10**9),
        ("seed", -1),
        ("seed", 1.5),
        ("seed", "abc"),
        ("pair", "nope"),
        ("pair", None),
        ("method", "magic"),
        ("method", ["cactus"]),
        ("system", "x" * 100_001),
    ],
)
def test_a_bad_value_is_named_at_its_control_alone(key, bad):
    wrong = settings.problems(values(**{key: bad}), PAIRS)
    assert list(wrong) == [key]
    with pytest.raises(ValueError, match=".") as raised:
        settings.to_request(values(**{key: bad}), PAIRS)
    assert str(raised.value) == wrong[key]


def test_other_methods_values_do_not_matter():
    assert settings.problems(values(**{"tas.epsilon": -5}), PAIRS) == {}


def test_default_settings_need_no_query():
    assert settings.to_query(settings.defaults()) == ""


def test_link_restores_what_was_set():
    chosen = values(
        pair="other", method="tas", **{"tas.epsilon": 0.2, "temperature": 0.0, "seed": None, "top_p": 0.9},
        prompt="Ünïcode & a=b #x\nnew line <b>", system="=1+1",
    )  # fmt: skip
    restored, complaints = link(chosen)
    assert complaints == []
    assert settings.defaults() | restored == chosen


def test_link_leaves_out_a_very_long_prompt():
    assert "prompt" not in settings.to_query(values(prompt="x" * 5000))


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"delta": "-1"}, "delta"),
        ({"delta": "lots"}, "delta"),
        ({"draft_length": "50"}, "draft_length"),
        ({"method": "magic"}, "magic"),
        ({"pair": "<script>"}, "pair"),
        ({"seed": "x"}, "seed"),
        ({"temperature": "nan"}, "temperature"),
        ({"epsilon": "0.1"}, "epsilon"),
        ({"cactus.delta": "1"}, "cactus.delta"),
    ],
)
def test_bad_parts_of_a_link_are_ignored_and_named(query, word):
    restored, complaints = settings.from_query({**query, "top_k": "7"}, PAIRS)
    assert restored == {"top_k": 7}
    assert len(complaints) == 1 and word in complaints[0]


def test_gradios_own_query_is_not_complained_about():
    assert settings.from_query({"__theme": "dark"}, PAIRS) == ({}, [])


def test_a_pair_that_cannot_be_used_here_is_refused_with_its_reason_but_may_be_in_a_link():
    assert settings.problems(values(pair="huge"), PAIRS) == {"pair": PAIRS["huge"]}
    with pytest.raises(ValueError, match="it needs 80 GB"):
        settings.to_request(values(pair="huge"), PAIRS)
    assert settings.from_query({"pair": "huge"}, dict.fromkeys(PAIRS, "")) == ({"pair": "huge"}, [])
