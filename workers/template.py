"""A chime.toml that says everything and changes nothing: each setting as a comment with its default and meaning."""

import json

from workers.configuration import ROLES
from workers.layers import defaults, variable
from workers.presets import SECTIONS, meaning

_HEAD = """\
# Chime's configuration. Every line that is commented out holds the default; take the # away to change it.
# Flags win over the environment (CHIME_...), the environment over this file, this file over a preset, and all of them
# over the thresholds of the chosen embedder (docs/embedders.md): those below are the ones of `hash`.
# `chime config show --origin` prints what is in force and why; `chime config show --preset paper --diff`
# what the paper's Table 7 does differently.

# preset = "paper"
"""

_PRICES = """\
# USD per million tokens, by the exact name that a model is asked by; one without a price is shown as unpriced.
# `cached` is for those of a prompt that the endpoint had read before, and as `input` where it is not given.
# [prices."MODEL"]
# input = 0.1
# output = 0.4
# cached = 0.05
"""

_ROLE_EXAMPLES = ("model", "base_url", "temperature", "max_tokens")


def template() -> str:
    """The text of a new chime.toml."""
    values = defaults()
    sections: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections[section].append(_line(name, value, meaning(key), variable(key)))
    for role in ROLES:
        sections[f"roles.{role}"] = [
            _line(name, values[f"models.{name}"], "", variable(f"roles.{role}.{name}")) for name in _ROLE_EXAMPLES
        ]
    parts = [_HEAD]
    for section, lines in sections.items():
        above = f"# {SECTIONS[section]}\n" if SECTIONS[section] else ""
        parts.append(f"{above}{f'[{section}]' + chr(10) if section else ''}{''.join(lines)}")
    parts.append(_PRICES)
    return "\n".join(parts)


def toml_value(value: object) -> str:
    """`value` as TOML writes it: decimals of a policy are strings inside, bare numbers here."""
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return json.dumps(value, ensure_ascii=False)
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def _line(name: str, value: object, what: str, named: str) -> str:
    left = f"# {name} = {toml_value(value)}"
    return f"{left:<32} # {what}\n" if what else f"{left:<32} # {named}\n"
