"""Acceptance rules: which drafted tokens to keep, and what to draw where one is not kept."""

from cactus.acceptance.parameter import Parameter
from cactus.acceptance.registry import RULES, make_rule
from cactus.acceptance.rule import Guarantee, Rule, Steps

__all__ = ["RULES", "Guarantee", "Parameter", "Rule", "Steps", "make_rule"]
