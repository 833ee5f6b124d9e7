import os
from importlib import import_module

import msgspec
import pytest

from events.errors import BadInput, UnknownName
from events.parameters import Parameters
from infra import embedders
from workers.configuration import EmbedderSettings, WeaviateSettings
from workers.layers import Flags, defaults, resolve, settings, shown, variable
from workers.presets import MEANINGS, PRESETS, SECTIONS, meaning
from workers.profiles import PROFILES, THRESHOLDS
from workers.template import template


def resolved(folder, text="", environment=None, **flags):
    (folder / "chime.toml").write_text(text, encoding="utf-8")
    return resolve(Flags(**flags), environment or {}, folder)


def test_every_setting_has_a_meaning_and_no_meaning_is_without_setting():
    """The table of meanings names exactly the settings there are."""
    assert [key for key in settings() if not meaning(key)] == []
    assert [key for key in MEANINGS if key not in settings()] == []
    assert {key.rpartition(".")[0] for key in settings()} == set(SECTIONS)


def test_variables_are_unambiguous():
    """No two settings share an environment variable."""
    names = [variable(key) for key in settings()]
    assert len(set(names)) == len(names)


def test_defaults_without_anything(tmp_path):
    """Without file, variables and flags everything has its default; the home is in the working directory."""
    got = resolve(Flags(), {}, tmp_path)
    assert got.home == tmp_path / ".chime"
    assert got.file is None
    assert not got.home.exists()
    assert {origin.text for origin in got.origins.values()} == {"default", "profile hash"}
    assert not any(origin.given for origin in got.origins.values())
    assert dict(got.values) == defaults()
    assert got.configuration.lag() == 32
    assert got.configuration.policy.name == "credit"


def test_precedence_flags_environment_file_preset_default(tmp_path):
    """A flag wins over the environment, that over the file, that over a preset, that over the default."""
    text = "[policy]\ntheta_merge = 0.7\nbeta = 0.3\nalpha = 2\n[models]\nretries = 7\n"
    environment = {"CHIME_POLICY_BETA": "0.35", "CHIME_POLICY_ALPHA": "4"}
    got = resolved(tmp_path, text, environment, preset="paper", sets=("policy.alpha=0.5",))
    values = {key: (got.values[key], got.origins[key].text) for key in got.values}
    assert values["policy.alpha"] == ("0.5", "flag -s policy.alpha")
    assert values["policy.beta"] == ("0.35", "environment CHIME_POLICY_BETA")
    assert values["policy.theta_merge"] == ("0.7", "file chime.toml:2")
    assert values["models.retries"] == (7, "file chime.toml:6")
    assert values["models.timeout_s"] == (2400.0, "preset paper")
    assert values["policy.near_tie"] == ("score", "default")


def test_decimals_stay_exact(tmp_path):
    """A decimal of the file reaches the policy as written, not as the nearest float."""
    got = resolved(tmp_path, "[policy]\ntheta_merge = 0.10000000000000000055\n")
    assert got.configuration.policy.parameters.recorded()["theta_merge"] == "0.10000000000000000055"


def test_roles_inherit_from_models(tmp_path):
    """A role's missing settings are those of [models]; a cap of 0 is the role's own."""
    text = '[models]\nmodel = "m"\nbase_url = "http://h/v1"\n[roles.gate]\nmodel = "g"\ntemperature = 0.5\n'
    configuration = resolved(tmp_path, text).configuration
    assert configuration.model("planner").model == "m"
    assert (configuration.model("gate").model, configuration.model("gate").temperature) == ("g", 0.5)
    assert (configuration.model("planner").max_tokens, configuration.model("gate").max_tokens) == (1024, 1536)
    assert configuration.endpoint("gate").base_url == "http://h/v1"


def test_missing_model_and_endpoint_say_what_to_set(tmp_path):
    """Asking for a role that is not configured names the flag and the setting."""
    configuration = resolved(tmp_path).configuration
    with pytest.raises(BadInput, match=r"--model NAME, or set models\.model"):
        configuration.model("gate")
    with pytest.raises(BadInput, match="--base-url"):
        configuration.endpoint("gate")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = \n", "chime.toml:1: invalid value"),
        ("[policy]\n\ntheta_merg = 1\n", "chime.toml:3: unknown setting 'policy.theta_merg'; did you mean policy."),
        ("theta_merge = 0.5\n", "chime.toml:1: unknown setting 'theta_merge'; did you mean policy.theta_merge?"),
        ("[policy]\nzzz = 1\n", "unknown setting 'policy.zzz'; [policy] has name, lambda, alpha,"),
        ("[polcy]\ntop_k = 1\n", "unknown setting 'polcy.top_k'; did you mean policy.top_k?"),
        ("top_kk = 1\n", "unknown setting 'top_kk'; did you mean policy.top_k?"),
        ("[roles.gate]\nmodell = 'x'\n", "unknown setting 'roles.gate.modell'; did you mean roles.gate.model?"),
        ("[policy]\nname = 'zzz'\n", "chime.toml:2: policy.name: no policy 'zzz'; there is credit, outcome"),
        ("[policy]\ntop_n = 2\n\n", "policy.top_k: is out of its range; it must be at most policy.top_n, which is 2"),
        ("[run]\nlag = 'zz'\n", "chime.toml:2: run.lag: 'zz' is none of an integer, auto, latest"),
        ("[log]\nlevel = 'loud'\n", "chime.toml:2: log.level: 'loud' is none of debug, info, warning, error"),
        ("[models]\ntimeout_s = inf\n", "chime.toml:2: models.timeout_s: is out of its range"),
        ("[models]\ntemperature = nan\n", "chime.toml:2: models.temperature: is out of its range"),
        ("[episode]\nbudget_s = nan\n", "chime.toml:2: episode.budget_s: is out of its range"),
        ("[run]\nordering_seed = 99999999999999999999\n", "chime.toml:2: run.ordering_seed: is out of its range"),
        ("[run]\nepochs = 9999999999\n", "chime.toml:2: run.epochs: is out of its range; it must be 1 to 1000000000"),
        ("[prices.m]\ninput = nan\noutput = 1\n", "chime.toml:2: prices.m.input: is out of its range"),
        ("[redis]\nurl = 'redis://:secret@['\n", "chime.toml:2: redis.url: is no address"),
        ("[redis]\nurl = 'localhost:6379'\n", "chime.toml:2: redis.url: must begin with redis://"),
        ("home = '~nobody-of-that-name'\n", "no home folder of that name"),
        ("[policy]\ntheta_merge = 1.5\n", "chime.toml:2: policy parameter theta_merge is out of its range"),
        ("[policy]\ntop_k = true\n", "chime.toml:2: policy.top_k: expected"),
        ("[run]\nconcurrency = 'x'\n", "chime.toml:2: run.concurrency: expected int, got str"),
        ("[run]\nconcurrency = 0\n", "chime.toml:2: run.concurrency: is out of its range; it must be 1 to 10000"),
        ("[run]\nlag = 0\n", "chime.toml:2: run.lag: is out of its range"),
        ("run = 1\n", "chime.toml:1: run: must be a table"),
        ("[run]\nlag = [1]\n", "chime.toml:2: run.lag: must be a single value"),
        ("[models]\nbase_url = 'host:1'\n", "chime.toml:2: models.base_url: is out of its range; it must be http"),
        ("[roles.gate]\ntemperature = 3\n", "chime.toml:2: roles.gate.temperature: is out of its range"),
        ("[prices.\"gpt-4.1\"]\ninput = 1\n", "chime.toml:2: prices.gpt-4.1: output is missing"),
        ("[prices]\nm = 1\n", "prices.m: must be a table"),
        ("[bank]\nstore = 'redis'\n", "chime.toml:2: bank.store: 'redis' is none of replica, weaviate"),
        ("[weaviate]\nurl = 'localhost:8080'\n", "chime.toml:2: weaviate.url: is no address; it must be http://host:port"),
        ("[weaviate]\nurl = 'http://h:99999'\n", "chime.toml:2: weaviate.url: is no address"),
        ("[weaviate]\nurl = 'http://h/v1'\n", "chime.toml:2: weaviate.url: is no address"),
        ("[weaviate]\nurl = 'http://u:secret@h'\n", "chime.toml:2: weaviate.url: holds a user or password"),
        ("[weaviate]\nurl = 'http://h'\ngrpc_url = 'h'\n", "chime.toml:3: weaviate.grpc_url: is no address; it"),
        ("[weaviate]\nurl = 'http://h'\ngrpc_url = 'http://h:1'\n", "chime.toml:3: weaviate.grpc_url: is no address"),
        ("[weaviate]\nurl = 'http://h'\ngrpc_url = 'h:80'\n", "chime.toml:3: weaviate.grpc_url: is the address of"),
        ("[weaviate]\ngrpc_url = 'h:50051'\n", "chime.toml:2: weaviate.grpc_url: belongs to a server of yours"),
        ("[weaviate]\napi_key_env = 'se-cret'\n", "chime.toml:2: weaviate.api_key_env: must be the name of"),
        ("[embedder]\nbatch_size = 0\n", "chime.toml:2: embedder.batch_size: is out of its range; it must be 1 to"),
        ("[embedder]\ndtype = 'int8'\n", "chime.toml:2: embedder.dtype: 'int8' is none of float32, float16, bfloat16"),
        ("[embedder]\nbase_url = 'host:1'\n", "chime.toml:2: embedder.base_url: is out of its range; it must be http"),
        ("[embedder]\napi_key_env = 'sk-secret'\n", "chime.toml:2: embedder.api_key_env: must be the name of"),
        ("preset = 'papr'\n", "unknown preset 'papr'; known: paper"),
    ],
)  # fmt: skip
def test_a_bad_file_names_path_line_and_reason(tmp_path, text, message):
    """Whatever is wrong in the file, the message begins with the place and ends with the reason."""
    with pytest.raises(BadInput) as error:
        resolved(tmp_path, text)
    assert message in str(error.value)
    assert "secret" not in str(error.value)


def test_a_flag_that_names_the_setting_says_it_once(tmp_path):
    """What -s gives wrongly is named once, not once as a flag and again as a setting."""
    with pytest.raises(BadInput, match=r"^-s run\.lag: 'zz' is none of"):
        resolve(Flags(sets=("run.lag=zz",)), {}, tmp_path)


def test_text_that_is_no_utf_8_is_named(tmp_path):
    """Bytes of a flag or a variable that are no text are refused at the setting, not where it is first written."""
    broken = os.fsdecode(b"a\xff")
    with pytest.raises(BadInput, match=r"^-s embedder\.model: is not UTF-8$"):
        resolve(Flags(sets=(f"embedder.model={broken}",)), {}, tmp_path)
    with pytest.raises(BadInput, match=r"^CHIME_MODELS_BASE_URL: models\.base_url: is not UTF-8$"):
        resolve(Flags(), {"CHIME_MODELS_BASE_URL": broken}, tmp_path)


def test_files_that_cannot_be_read(tmp_path):
    """A named file that is missing, a folder, or bytes that are no UTF-8 are refused by name."""
    with pytest.raises(BadInput, match=r"other\.toml: no such file; `chime init` writes one"):
        resolve(Flags(file="other.toml"), {}, tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        resolve(Flags(file="."), {}, tmp_path)
    (tmp_path / "chime.toml").write_bytes(b"a = '\xff'\n")
    with pytest.raises(BadInput, match=r"not UTF-8 at byte 5$"):
        resolve(Flags(), {}, tmp_path)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CHIME_RUN_CONCURRENCY": "many"}, "CHIME_RUN_CONCURRENCY: run.concurrency: expected int"),
        ({"CHIME_POLICY_THETA_MERG": "1"}, "did you mean CHIME_POLICY_THETA_MERGE?"),
        ({"CHIME_RUN_LAG": "newest"}, "CHIME_RUN_LAG: run.lag: 'newest' is none of an integer, auto, latest"),
        ({"CHIME_POLICY_ZZZ": "1"}, "CHIME_POLICY_ZZZ is no setting; `chime config show` prints every setting"),
        ({"CHIME_POLICY_TOPK": "1"}, "did you mean CHIME_POLICY_TOP_K?"),
    ],
)
def test_a_bad_variable_is_named(tmp_path, environment, message):
    """A variable of a section that is no setting, or whose value does not fit, is refused by name."""
    with pytest.raises(BadInput) as error:
        resolve(Flags(), environment, tmp_path)
    assert message in str(error.value)


def test_foreign_and_empty_variables_are_left_alone(tmp_path):
    """A CHIME_ variable outside the sections belongs to somebody else; an empty one counts as not set."""
    got = resolve(Flags(), {"CHIME_SOMETHING": "1", "CHIME_REDIS_URL": "", "CHIME_RUN_LAG": "7"}, tmp_path)
    assert got.configuration.redis.url == ""
    assert got.configuration.lag() == 7


@pytest.mark.parametrize("one", ["policy.top_k", "=3", "polic.top_k=3", "policy.top_k=x", "policy.near_tie=maybe"])
def test_a_bad_set_flag_is_named(tmp_path, one):
    """-s without a value, with an unknown setting or an unfit value is refused, naming the flag."""
    with pytest.raises(BadInput, match=r"^-s "):
        resolve(Flags(sets=(one,)), {}, tmp_path)


def test_a_key_in_the_place_of_its_name_is_not_repeated(tmp_path):
    """`api_key_env` that holds a key is refused without printing it."""
    with pytest.raises(BadInput) as error:
        resolved(tmp_path, "[models]\napi_key_env = 'sk-secret123'\n")
    assert "secret" not in str(error.value)
    assert "name of an environment variable" in str(error.value)


def test_the_variable_with_the_key_of_weaviate_is_no_setting(tmp_path):
    """The variable that holds the key stands beside those of the settings, and its value goes nowhere."""
    environment = {
        "CHIME_WEAVIATE_API_KEY": "secret",
        "CHIME_WEAVIATE_GRPC_URL": "h:1",
        "CHIME_WEAVIATE_URL": "http://h",
    }
    got = resolve(Flags(), environment, tmp_path)
    assert got.configuration.weaviate == WeaviateSettings(url="http://h", grpc_url="h:1")
    assert "secret" not in repr(got)
    with pytest.raises(BadInput, match="CHIME_WEAVIATE_KEY is no setting"):
        resolve(Flags(), {"CHIME_WEAVIATE_KEY": "secret"}, tmp_path)


def test_the_home_is_relative_to_who_names_it(tmp_path):
    """A home in the file is relative to the file's folder, one from a flag or variable to the working directory."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.toml").write_text("home = 'data'\n")
    assert resolve(Flags(file="sub/c.toml"), {}, tmp_path).home == tmp_path / "sub" / "data"
    assert resolve(Flags(file="sub/c.toml"), {"CHIME_HOME": "x"}, tmp_path).home == tmp_path / "x"


def test_the_preset_holds_table_7(tmp_path):
    """`paper` is Table 7, checked against the table's numbers."""
    got = resolve(Flags(preset="paper"), {}, tmp_path).configuration
    model = got.models
    assert (model.temperature, model.max_tokens, model.timeout_s, model.retries, model.retry_base_s) == (
        0, 16_384, 2400, 15, 50,
    )  # fmt: skip
    parameters = got.policy.parameters.recorded()
    named = {*THRESHOLDS, *(key.removeprefix("policy.") for key in PRESETS["paper"])}
    assert {name: str(parameters[name]) for name in parameters if name in named} == {
        "lambda": "3", "alpha": "1", "beta": "0.2", "top_n": "20", "top_k": "3", "floor": "0.3", "margin": "0.03",
        "theta_conf": "0.5", "novelty": "0.1", "theta_merge": "0.88", "n_min": "3", "theta_prune": "-0.1",
    }  # fmt: skip
    assert (got.run.concurrency, got.run.ordering_seed) == (16, 42)
    episode = got.episode
    assert (episode.max_steps, episode.max_errors, episode.seed, episode.budget_s) == (100, 10, 42, 3600)
    embedder = got.embedder
    assert (embedder.name, embedder.model) == ("sentence-transformers", "Qwen/Qwen3-Embedding-0.6B")
    assert (embedder.batch_size, embedder.max_length) == (16, 16_384)


@pytest.mark.parametrize(
    ("sets", "profile"),
    [
        (("embedder.name=hash",), "hash"),
        (("embedder.name=minilm",), "minilm"),
        (("embedder.name=sentence-transformers", "embedder.model=Qwen/Qwen3-Embedding-0.6B"), "qwen3"),
        (("embedder.name=sentence-transformers", "embedder.model=sentence-transformers/all-MiniLM-L6-v2"), "minilm"),
        (("embedder.name=openai", "embedder.model=qwen3-embedding:0.6b"), "qwen3"),
        (("embedder.name=openai", "embedder.model=somebodys-model"), None),
    ],
)
def test_thresholds_come_from_the_embedders_profile(tmp_path, sets, profile):
    """Each threshold that nobody gave is that of the chosen embedder, by its model too, and says so."""
    got = resolve(Flags(sets=(*sets, "policy.floor=0.42")), {}, tmp_path)
    assert (got.values["policy.floor"], got.origins["policy.floor"].text) == ("0.42", "flag -s policy.floor")
    values = PROFILES[profile].values if profile else Parameters().recorded()
    for name in THRESHOLDS[1:]:
        assert got.values[f"policy.{name}"] == values[name]
        assert got.origins[f"policy.{name}"].text == (f"profile {profile}" if profile else "default")
    assert got.configuration.policy.parameters.recorded()["theta_merge"] == values["theta_merge"]
    assert got.origins["policy.lambda"].text == "default"


@pytest.mark.parametrize("name", embedders.names())
def test_the_options_of_every_embedder_are_settings_with_its_defaults(name):
    """What an embedder can be told stands in the configuration, typed and with the default that it has itself."""
    module = import_module(f"infra.embedders.{name.replace('-', '_')}")
    ours = {one.name: one for one in msgspec.structs.fields(EmbedderSettings)}
    for option in msgspec.structs.fields(module.Settings):
        assert option.type == ours[option.name].type
        if not option.required:
            assert option.default == ours[option.name].default, option.name
    assert set(module.Settings.__struct_fields__) >= module.OPERATIONAL


def test_every_profile_says_every_threshold_and_fits(tmp_path):
    """A profile holds exactly the parameters that are compared with similarities; those of hash are the defaults."""
    for profile in PROFILES.values():
        assert tuple(profile.values) == THRESHOLDS
        changed = Parameters().changed(profile.values).recorded()
        assert {name: changed[name] for name in THRESHOLDS} == dict(profile.values)
    assert {**Parameters().recorded(), **PROFILES["hash"].values} == Parameters().recorded()


def test_another_embedder_drops_the_options_of_the_one_below(tmp_path):
    """A flag that names another embedder than the file or the preset leaves their options, which it may not have."""
    text = '[embedder]\nname = "openai"\nmodel = "m"\nbase_url = "http://h/v1"\nretries = 0\n'
    assert resolved(tmp_path, text).configuration.embedder.given() == {
        "model": "m", "base_url": "http://h/v1", "retries": 0,
    }  # fmt: skip
    assert resolved(tmp_path, text, preset="paper").configuration.embedder.max_length == 0
    for other in (resolved(tmp_path, text, sets=("embedder.name=hash",)), resolve(Flags(preset="paper", sets=("embedder.name=hash",)), {}, tmp_path)):  # fmt: skip  # noqa: E501 - two ways to the same
        assert other.configuration.embedder.given() == {}
        assert other.origins["policy.floor"].text == "profile hash"
    same = resolved(tmp_path, text, sets=("embedder.name=openai", "embedder.model=n"))
    assert same.configuration.embedder.given() == {"model": "n", "base_url": "http://h/v1", "retries": 0}


def test_the_template_says_everything_and_changes_nothing(tmp_path):
    """A new chime.toml gives the defaults as it stands, and with every line uncommented."""
    text = template()
    assert dict(resolved(tmp_path, text).values) == dict(resolve(Flags(), {}, tmp_path / "nowhere").values)
    lines = text.split("# USD per million tokens")[0].splitlines()
    uncommented = [line[2:] if line.startswith("# ") and " = " in line.split("#")[1] else line for line in lines]
    got = resolved(tmp_path, "\n".join(line for line in uncommented if not line.startswith("preset")))
    plain = {key: value for key, value in got.values.items() if not key.startswith("roles.")}
    assert plain == dict(resolve(Flags(), {}, tmp_path / "nowhere").values)
    plain_gate = resolve(Flags(), {}, tmp_path / "nowhere").configuration.role("gate")
    assert got.configuration.role("gate") == plain_gate
    for symbol in ("λ", "α", "β", "θ_conf", "θ_merge", "n_min", "θ_prune"):
        assert symbol in text


def test_defaults_name_no_role(tmp_path):
    """A role's settings have no defaults of their own."""
    assert not [key for key in defaults() if key.startswith("roles.")]


def test_a_password_is_not_shown():
    """The address of a server is printed without its password."""
    assert shown("redis.url", "rediss://u:pw@h:6379/0") == "rediss://u:***@h:6379/0"
    assert shown("models.base_url", "https://u:pw@h/v1") == "https://u:***@h/v1"
    assert shown("roles.gate.base_url", "https://u:pw@h/v1") == "https://u:***@h/v1"
    assert shown("redis.url", "unix:///tmp/s") == "unix:///tmp/s"
    assert shown("home", "a:b@c") == "a:b@c"


def test_prices_by_model(tmp_path):
    """A price belongs to a model whose name may hold dots."""
    got = resolved(
        tmp_path, '[prices."gpt-4.1"]\ninput = 1\noutput = 2.5\n', sets=("prices.m.input=1", "prices.m.output=0")
    )
    assert (got.configuration.prices["gpt-4.1"].output, got.configuration.prices["m"].input) == (2.5, 1.0)


def test_unknown_preset(tmp_path):
    """A preset that does not exist is refused with those that do."""
    with pytest.raises(UnknownName):
        resolve(Flags(preset="best"), {}, tmp_path)
