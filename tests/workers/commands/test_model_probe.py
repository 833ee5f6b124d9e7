"""`chime model probe`, and the rows of `chime doctor` on models: what an endpoint can do, for people and programs."""

from collections.abc import Iterator

import pytest
from rehearsal_endpoint import rehearsal_endpoint

from infra.rehearsal import MODEL
from infra.rehearsal.key import AnswerKey
from infra.rehearsal.planting import RehearsalSettings

NOBODY = "http://127.0.0.1:1/v1"


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of the rehearsal model, which knows no task."""

    async def key() -> AnswerKey:
        return AnswerKey({})

    with rehearsal_endpoint(key, RehearsalSettings()) as url:
        yield url


def test_every_ability_with_its_evidence(chime, endpoint):
    """One row each: what was found, what was asked with, the status and what came back."""
    out = chime("model", "probe", endpoint, MODEL)
    rows = {line.split("  ")[0]: line for line in out.splitlines() if "  " in line}
    assert "yes" in rows["json_schema"]
    assert '{"colour": "red"' in rows["json_schema"]
    assert rows["stream"].split()[1] == "no"
    assert "does not stream" in rows["stream"]
    assert "for chime.toml" not in out


def test_for_programs(chime, endpoint):
    """The same as one envelope."""
    data = chime.json("model", "probe", endpoint, MODEL)["data"]
    assert (data["answers"], data["served"], data["settings"]) == (True, MODEL, {})
    [stream] = [one for one in data["findings"] if one["ability"] == "stream"]
    assert (stream["verdict"], stream["status"]) == ("no", 400)


@pytest.mark.parametrize(("url", "model"), [(NOBODY, "m"), ("", "another")], ids=["nobody", "no such model"])
def test_an_endpoint_that_does_not_answer(chime, endpoint, url, model):
    """Ends with 3 and one line; what was found until then is shown."""
    out = chime("model", "probe", url or endpoint, model, code=3)
    assert "answer" in out
    assert "does not answer" in chime.err
    assert "Traceback" not in chime.err


@pytest.mark.parametrize("url", ["ftp://host/v1", "host", "http://user:hunter22@host/v1"])
def test_an_address_that_is_none(chime, url):
    """Ends with 2, and repeats no password."""
    chime("model", "probe", url, "m", code=2)
    assert "base_url" in chime.err
    assert "hunter22" not in chime.err


def test_doctor_asks_each_model(chime, endpoint, monkeypatch):
    """One row for a model, with the roles that it plays; it says what a schema and tools come to."""
    monkeypatch.setenv("CHIME_MODELS_BASE_URL", endpoint)
    monkeypatch.setenv("CHIME_MODELS_MODEL", MODEL)
    rows = {row["check"]: row for row in chime.json("doctor")["data"]}
    row = rows[f"model {MODEL} (planner, executor, gate)"]
    assert (row["status"], row["fix"]) == ("ok", "")
    assert row["detail"].startswith(f"answers as {MODEL}; json_schema: yes; tools: yes")


def test_doctor_on_a_model_that_is_not_there(chime, endpoint, monkeypatch):
    """The endpoint is there, the model is not: that fails, with the command that shows more."""
    monkeypatch.setenv("CHIME_MODELS_BASE_URL", endpoint)
    monkeypatch.setenv("CHIME_MODELS_MODEL", "another")
    rows = {row["check"]: row for row in chime.json("doctor", code=3)["data"]}
    row = rows["model another (planner, executor, gate)"]
    assert row["status"] == "fail"
    assert f"chime model probe {endpoint}" in row["fix"]
