"""What looks like a secret is hidden, by its form; what only resembles one stays."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import redaction
from infra.redaction import redacted, redacted_strictly, suspicious, without_key

HEX = "0123456789abcdef" * 2
BASE64 = "dGhpcyBpcyBhIHZlcnkgbG9uZyBzZWNyZXQga2V5IHdpdGggMTIz"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP-mB92K27"  # noqa: S105 - nobody's


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: ***"),
        ("Authorization: Token abcd, then", "Authorization: ***, then"),
        ("Proxy-Authorization: secretive", "Proxy-Authorization: ***"),
        ("authorization=Basic dXNlcjpwYXNzd29yZA==", "authorization=***"),
        ("sent bearer abcd1234 along", "sent bearer *** along"),
        ("key sk-proj-abcdefgh1234 refused", "key *** refused"),
        ("hf_abcdefghij and ghp_0123456789abcdef", "*** and ***"),
        ("gsk_abcdefghij, AKIAIOSFODNN7EXAMPLE and AIza" + "x" * 35, "***, *** and ***"),
        (f"token {TOKEN} expired", "token *** expired"),
        ("redis://:s3cret@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://user:p%40ss@host", "rediss://user:***@host"),
        ("http://127.0.0.1:9000/v1", "http://127.0.0.1:9000/v1"),
        ("?api_key=abcdef&x=1", "?api_key=***&x=1"),
        ("https://h/v1?key=abcdef&x=1", "https://h/v1?key=***&x=1"),
        ("Incorrect API key provided: abcdef. See", "Incorrect API key provided: *** See"),
        ('{"password": "p w"}', '{"password": ***}'),
        ("{'x-api-key': 'p w'}", "{'x-api-key': ***}"),
        ("client_secret: abc; access_token=def", "client_secret: ***; access_token=***"),
        ("task-list of the basic kind", "task-list of the basic kind"),
        ("episode-3 asks sk-1", "episode-3 asks sk-1"),
        ("max_tokens: 16384 is too large; unknown key: model", "max_tokens: 16384 is too large; unknown key: model"),
        (f"config_hash {HEX}", f"config_hash {HEX}"),
    ],
)
def test_secrets_inside_texts_are_hidden(text: str, expected: str) -> None:
    """Keys by their form, passwords in URLs, tokens after their scheme; plain text and hashes stay."""
    assert redacted(text) == expected


def test_a_secret_in_an_object_inside_a_string_is_hidden() -> None:
    """However often it is quoted."""
    text = json.dumps({"body": json.dumps({"api_key": "hunter22", "headers": {"Authorization": "Token hunter22"}})})
    assert "hunter22" not in redacted(text)
    assert "hunter22" not in redacted(json.dumps(text))


@pytest.mark.parametrize(
    "secret", [HEX, HEX.upper(), BASE64, f"{BASE64}==", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"]
)
def test_long_runs_of_others_are_hidden(secret: str) -> None:
    """Whatever word stands before them."""
    assert redacted_strictly(f"the token was {secret}, try again") == "the token was ***, try again"


def test_a_user_of_an_address_is_hidden() -> None:
    """A token may stand in its place."""
    assert redacted_strictly("see https://abcdef@host/v1") == "see https://***@host/v1"


@pytest.mark.parametrize(
    "text",
    [
        "the model nvidia/Llama-3_1-Nemotron-Ultra-253B-v1 does not exist",
        "no accounts/fireworks/models/llama-v3p1-405b-instruct here",
        "DeepSeek-R1-Distill-Llama-70B-AWQ-Int4-G128",
        "/usr/local/lib/python3.11/site-packages/vllm/entrypoints/openai/serving_chat.py",
        "request 550e8400-e29b-41d4-a716-446655440000",
        "=" * 80,
        "x" * 80,
    ],
)
def test_names_paths_and_lines_stay(text: str) -> None:
    """An error that names a model is of use only with its name."""
    assert redacted_strictly(text) == text


PIECES = [
    "Bearer ", "BASIC ", "Authorization", "proxy-authorization: ", "x-api-key", "API key provided",
    "pa\u017f\u017fword",
    "passwd", "client_\u017fecret", "acce\u017fs_to\u212aen", "id_token", "?sig=", "&signature=", "?key=", "sk-", "rk-",
    "hf_", "gho_", "github_pat_", "glpat-", "xoxb-", "gsk_", "nvapi-", "xai-", "r8_", "AIza", "AKIA", "ASIA", "eyJ",
    "redis://", "https://u:p@h", ":", "=", " ", '"', "'", "\\", "@", "abcdefgh12345678", "A0" * 15, "\u0130", "K", "x",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_a_look_at_words_spares_no_secret(text: str) -> None:
    """What is hidden is what every pattern over the whole text would hide, in whatever case it is written."""
    everything = text
    for _, pattern, replacement in redaction._SECRETS:
        everything = pattern.sub(replacement, everything)
    assert redacted(text) == everything
    assert suspicious(text) or everything == text


def test_a_key_that_is_none_is_no_secret() -> None:
    """A word that servers without keys are given stays where it stands in a text; a key does not."""
    assert without_key("EMPTY is an EMPTY word", "EMPTY") == "EMPTY is an EMPTY word"
    assert without_key("any text", "") == "any text"
    assert without_key("your key hunter22 is wrong", "hunter22") == "your key *** is wrong"
