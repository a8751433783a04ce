"""Every acceptance rule by name. Adding a rule is a class and one line here; what it is given is checked for it."""

from collections.abc import Mapping
from types import MappingProxyType

from cactus.acceptance.block import Block
from cactus.acceptance.budget import CactusBudget
from cactus.acceptance.checks import checked
from cactus.acceptance.fixed import Interp, Lenience, Tas, TopK
from cactus.acceptance.lift import Cactus, CactusAdaptive, CactusExact, Sps
from cactus.acceptance.mentored import Mentored
from cactus.acceptance.rule import Rule

RULES: Mapping[str, type[Rule]] = MappingProxyType(
    {
        rule.name: checked(rule)
        for rule in (
            Sps,
            Cactus,
            CactusExact,
            CactusAdaptive,
            CactusBudget,
            Tas,
            Mentored,
            Interp,
            TopK,
            Lenience,
            Block,
        )
    }
)


def make_rule(name: str, **params: object) -> Rule:
    """The rule of that name. ValueError says what is wrong and what is allowed."""
    if not isinstance(name, str) or name not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {name!r}")
    rule = RULES[name]
    allowed = [parameter.name for parameter in rule.parameters]
    for unknown in params.keys() - set(allowed):
        takes = ", ".join(allowed) or "no parameters"
        raise ValueError(f"{name} has no parameter {unknown!r}; it takes {takes}")
    return rule(**params)
