"""From flags, environment, file and preset to one `Configuration`, with the origin of every value."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from events.errors import BadInput, UnknownName
from events.parameters import Parameters
from runtime.settings import Price
from workers import paths
from workers.configuration import ROLES, Configuration, ModelDefaults, PolicySettings, WeaviateSettings, check
from workers.presets import PRESETS
from workers.profiles import profile_of

FILE = "chime.toml"

#: the setting that chooses an embedder
EMBEDDER = "embedder.name"

#: variables that are read beside the settings' own
SPECIAL_VARIABLES = ("CHIME_CONFIG", "CHIME_PRESET", "CHIME_DEBUG", WeaviateSettings().api_key_env)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from: `flag -s`, `environment CHIME_HOME`, `file chime.toml:3`, `preset paper`,
    `profile minilm` (the thresholds of the chosen embedder), `default`.
    """

    kind: Literal["flag", "environment", "file", "preset", "profile", "default"]
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()

    @property
    def given(self) -> bool:
        """Whether somebody asked for the value."""
        return self.kind not in ("profile", "default")


@dataclass(frozen=True, slots=True)
class Given:
    """One value before it is typed."""

    value: object
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the command line says about the configuration."""

    #: chime.toml elsewhere
    file: str | None = None
    preset: str | None = None
    #: `a.b=c` of -s/--set, in order
    sets: tuple[str, ...] = ()
    #: dotted setting -> (flag, value), for flags that stand for one
    named: Mapping[str, tuple[str, object]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The configuration and where each of its values comes from."""

    configuration: Configuration
    #: dotted setting -> plain value; a role's inherited ones are absent
    values: Mapping[str, object]
    origins: Mapping[str, Origin]
    #: absolute
    home: Path
    file: Path | None


@cache
def settings() -> Mapping[str, Any]:
    """Every dotted setting but prices, and its type."""
    return MappingProxyType(dict(_walk(Configuration, "")))


def _walk(struct: type[Struct], prefix: str) -> Iterator[tuple[str, Any]]:
    for one in msgspec.structs.fields(struct):
        name = prefix + one.name
        if one.type is PolicySettings:
            yield f"{name}.name", str
            for parameter in Parameters().recorded():
                yield f"{name}.{parameter}", int | str | Decimal
        elif name == "roles":
            for role in ROLES:
                yield from _walk(ModelDefaults, f"roles.{role}.")
        elif name == "prices":
            continue
        elif isinstance(one.type, type) and issubclass(one.type, Struct):
            yield from _walk(one.type, f"{name}.")
        else:
            yield name, one.type


def defaults() -> dict[str, object]:
    """Every setting that has a default of its own, with it."""
    plain = _flat(msgspec.to_builtins(_without_parameters(Configuration())))
    return plain | {f"policy.{name}": value for name, value in Parameters().recorded().items()}


def _without_parameters(configuration: Configuration) -> dict[str, Any]:
    fields = msgspec.structs.asdict(configuration)
    return fields | {"policy": {"name": configuration.policy.name}, "prices": {}}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key == "prices" and isinstance(value, Mapping):
            flat |= {f"prices.{model}.{part}": v for model, price in value.items() for part, v in _price(model, price)}
        elif isinstance(value, Mapping):
            flat |= _flat(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def _price(model: str, price: object) -> list[tuple[str, object]]:
    if not isinstance(price, Mapping):
        raise BadInput(f'prices.{model}: must be a table: [prices."{model}"] with input and output')
    return list(price.items())


def variable(key: str) -> str:
    """The environment variable of a setting."""
    return "CHIME_" + key.upper().replace(".", "_")


def resolve(flags: Flags, environment: Mapping[str, str], folder: Path) -> Resolved:
    """Flags over environment over file over preset over the embedder's profile over defaults.

    Args:
        flags: of the command line.
        environment: of the process.
        folder: the working directory, where chime.toml is looked for.

    Raises:
        BadInput: an unreadable file, an unknown setting, a value that is of another type or out of range; the message
            begins with the place.
    """
    file, layer = _file_layer(flags.file or environment.get("CHIME_CONFIG") or None, folder)
    from_environment = _environment_layer(environment)
    from_flags = _flag_layer(flags)
    preset = flags.preset or environment.get("CHIME_PRESET") or layer.pop("preset", Given("", Origin("default"))).value
    given = {key: Given(value, Origin("default")) for key, value in defaults().items()}
    for one in (_preset_layer(str(preset)), layer, from_environment, from_flags):
        given = _without_other_embedders(given, one) | one
    given |= _profile_layer(given)
    values = {key: _typed(key, one) for key, one in given.items()}
    origins = {key: one.origin for key, one in given.items()}
    configuration = _built(values, origins)
    base = file.parent if file is not None and origins["home"].kind == "file" else folder
    home = paths.at(base, configuration.home).absolute()
    recorded = {f"policy.{name}": value for name, value in configuration.policy.parameters.recorded().items()}
    return Resolved(configuration=configuration, values={**values, **recorded}, origins=origins, home=home, file=file)


def _built(values: Mapping[str, object], origins: Mapping[str, Origin]) -> Configuration:
    """Raises: BadInput, beginning with the place of the value that does not fit."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        if not key.startswith(("prices.", "policy.")):
            *path, leaf = key.split(".")
            at = tree
            for part in path:
                at = at.setdefault(part, {})
            at[leaf] = value
    parameters = Parameters()
    for key, value in values.items():
        if key.startswith("policy.") and key != "policy.name":
            try:
                parameters = parameters.changed({key.removeprefix("policy."): value})  # type: ignore[dict-item]  # typed by `settings`
            except BadInput as error:
                raise BadInput(_placed(origins[key], str(error))) from error
    tree["prices"] = _prices(values, origins)
    built = msgspec.convert(tree, Configuration)
    policy = PolicySettings(name=str(values["policy.name"]), parameters=parameters)
    configuration = msgspec.structs.replace(built, policy=policy)
    try:
        check(configuration)
    except BadInput as error:
        key = str(error).split(":", 1)[0]
        raise BadInput(_placed(origins.get(key, Origin("default")), str(error))) from error
    return configuration


def _prices(values: Mapping[str, object], origins: Mapping[str, Origin]) -> dict[str, dict[str, object]]:
    prices: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        if key.startswith("prices."):
            model, part = key.removeprefix("prices.").rsplit(".", 1)
            prices.setdefault(model, {})[part] = value
    for model, price in prices.items():
        missing = [part for part in ("input", "output") if part not in price]
        if missing:
            origin = next(origins[f"prices.{model}.{part}"] for part in price)
            raise BadInput(_placed(origin, f"prices.{model}: {missing[0]} is missing (USD per million tokens)"))
    return prices


def _typed(key: str, given: Given) -> object:
    kind = float if key.startswith("prices.") else settings()[key]
    value = given.value
    if isinstance(value, Decimal):
        value = str(value) if key.startswith("policy.") else float(value)
    if key.startswith("policy.") and key != "policy.name" and isinstance(value, float):
        value = str(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadInput(_placed(given.origin, f"{key}: is not UTF-8")) from error
    try:
        if key.startswith("policy.") and key != "policy.name":
            return msgspec.convert(value, int | str, strict=True)
        # A file and a preset have types of their own; a variable or a flag is text.
        return msgspec.convert(value, kind, strict=given.origin.kind not in ("environment", "flag"))
    except msgspec.ValidationError as error:
        raise BadInput(_placed(given.origin, f"{key}: {_unfit(kind, value, str(error))}")) from error


def _unfit(kind: Any, value: object, reason: str) -> str:
    """Why `value` is none of the setting's: of settings with words, the words there are."""
    members = (kind, *get_args(kind))
    words = [str(word) for one in members if get_origin(one) is Literal for word in get_args(one)]
    if words and isinstance(value, str):
        number = ["an integer"] if int in members else []
        return f"{value!r} is none of {', '.join([*number, *words])}"
    return (reason[:1].lower() + reason[1:]).replace("`", "")


def _placed(origin: Origin, message: str) -> str:
    """`message`, which may begin with the setting's name, behind its place; a flag that is the name says it once."""
    place = origin.detail or origin.kind
    named = place.removeprefix("-s ") if origin.kind == "flag" else ""
    return f"{place}: {message.removeprefix(f'{named}: ') if named else message}"


def _known(key: str, place: str) -> str:
    """`key`, when it is a setting.

    Raises:
        BadInput: it is not; names the nearest one.
    """
    if key in settings():
        return key
    if key.startswith("prices."):
        if key.count(".") >= 2 and key.rsplit(".", 1)[1] in Price.__struct_fields__:
            return key
        parts = ", ".join(Price.__struct_fields__)
        raise BadInput(f'{place}: unknown setting {key!r}; a price is [prices."MODEL"] with {parts}')
    raise BadInput(f"{place}: unknown setting {key!r}; {nearest(key)}")


def nearest(key: str) -> str:
    """Which settings a mistyped one may stand for."""
    section, _, leaf = key.rpartition(".")
    known = [one for one in (*settings(), "preset") if not one.startswith("roles.") or section.startswith("roles.")]
    leaves = {one: one.rpartition(".")[2] for one in known}
    here = [one for one in known if one.rpartition(".")[0] == section]
    # The name counts, not the section before it, which makes every setting of a section alike.
    for among in (here if section else [], known):
        for one in among:
            if leaves[one] == leaf:
                return f"did you mean {one}?"
        close = get_close_matches(leaf, [leaves[one] for one in among], n=1, cutoff=0.6)
        if close:
            return f"did you mean {next(one for one in among if leaves[one] == close[0])}?"
    if section and here:
        return f"[{section}] has {', '.join(leaves[one] for one in here)}"
    return "`chime config show` prints every one"


def _file_layer(named: str | None, folder: Path) -> tuple[Path | None, dict[str, Given]]:
    path = paths.at(folder, named or FILE)
    shown = named or FILE
    text = ""
    try:
        text = path.read_bytes().decode()
        tree = tomllib.loads(text, parse_float=Decimal)
    except FileNotFoundError as error:
        if named:
            raise BadInput(f"{shown}: no such file; `chime init` writes one") from error
        return None, {}
    except OSError as error:
        raise BadInput(f"{shown}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{shown}: is not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise BadInput(_toml_error(shown, text, error)) from error
    lines = _lines(text)
    layer: dict[str, Given] = {}
    for key, value in _flat(tree).items():
        place = f"{shown}:{lines[key]}" if key in lines else shown
        given = Given(value, Origin("file", place))
        if key == "preset":
            layer[key] = given
        elif isinstance(value, list | Mapping) or key in {one.split(".")[0] for one in settings() if "." in one}:
            raise BadInput(f"{place}: {key}: " + ("must be a table" if "." not in key else "must be a single value"))
        else:
            layer[_known(key, place)] = given
    return path.absolute(), layer


def _toml_error(shown: str, text: str, error: tomllib.TOMLDecodeError) -> str:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
    if found is None:
        return f"{shown}: {error}"
    line = found[2] or str(max(1, len(text.splitlines())))
    return f"{shown}:{line}: {found[1][:1].lower()}{found[1][1:]}"


_SECTION = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_ASSIGNMENT = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _lines(text: str) -> dict[str, int]:
    """Dotted setting -> line; for error messages, so a form it does not know merely has no line."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (found := _SECTION.fullmatch(line)) is not None:
            section = _unquoted(found[1]) + "."
            lines.setdefault(section.removesuffix("."), number)
        elif (found := _ASSIGNMENT.match(line)) is not None:
            lines[section + _unquoted(found[1])] = number
    return lines


def _unquoted(dotted: str) -> str:
    return re.sub(r"""["']|\s""", "", dotted)


def _environment_layer(environment: Mapping[str, str]) -> dict[str, Given]:
    by_variable = {variable(key): key for key in settings()}
    sections = tuple({f"CHIME_{key.split('.')[0].upper()}_" for key in settings() if "." in key})
    layer: dict[str, Given] = {}
    for name, value in environment.items():
        if not name.startswith("CHIME_") or name in SPECIAL_VARIABLES or not value:
            continue
        if name in by_variable:
            layer[by_variable[name]] = Given(value, Origin("environment", name))
        elif name.startswith(sections):
            section = next(one for one in sections if name.startswith(one))
            same = {
                variable.removeprefix(section): variable for variable in by_variable if variable.startswith(section)
            }
            close = get_close_matches(name.removeprefix(section), same, n=1, cutoff=0.6)
            hint = f"did you mean {same[close[0]]}?" if close else "`chime config show` prints every setting"
            raise BadInput(f"environment variable {name} is no setting; {hint}")
    return layer


def _preset_layer(name: str) -> dict[str, Given]:
    if not name:
        return {}
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return {key: Given(value, Origin("preset", name)) for key, value in PRESETS[name].items()}


def _without_other_embedders(below: Mapping[str, Given], layer: Mapping[str, Given]) -> dict[str, Given]:
    """`below` without the options of its embedder, where `layer` names another one: that may not even have them."""
    wanted = layer.get(EMBEDDER)
    if wanted is None or wanted.value == below[EMBEDDER].value:
        return dict(below)
    own = {key: Given(value, Origin("default")) for key, value in defaults().items() if key.startswith("embedder.")}
    return {**below, **own}


def _profile_layer(given: Mapping[str, Given]) -> dict[str, Given]:
    """The thresholds of the embedder that `given` names, where nobody gave them."""
    name, model = (str(given[f"embedder.{part}"].value) for part in ("name", "model"))
    profile = profile_of(name, model)
    if profile is None:
        return {}
    layer = {f"policy.{key}": Given(value, Origin("profile", profile.name)) for key, value in profile.values.items()}
    return {key: one for key, one in layer.items() if not given[key].origin.given}


def _flag_layer(flags: Flags) -> dict[str, Given]:
    layer = {_known(key, flag): Given(value, Origin("flag", flag)) for key, (flag, value) in flags.named.items()}
    for one in flags.sets:
        key, sign, value = one.partition("=")
        if not sign or not key.strip():
            raise BadInput(f"-s {one}: must be a.b=c, such as policy.theta_merge=0.9")
        layer[_known(key.strip(), f"-s {one}")] = Given(value.strip(), Origin("flag", f"-s {key.strip()}"))
    return layer


def shown(key: str, value: object) -> object:
    """`value` fit to print: a password in an address is hidden."""
    if not key.endswith("url") or not isinstance(value, str):
        return value
    parts = urlsplit(value)
    if parts.password is None:
        return value
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{parts.netloc.rsplit('@', 1)[1]}"))
