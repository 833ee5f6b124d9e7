"""A server of banks that is late is no outage: a machine may be busy with other things."""

import pytest
from weaviate.classes.init import Timeout

from infra.banks import weaviate_client, weaviate_edge


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is given up because its answer is late; a test whose server hangs says when it is."""
    for name in ("READ_S", "PATIENT_S", "_WRITE_S", "_GREET_S", "_SCHEMA_S"):
        monkeypatch.setattr(weaviate_edge, name, 60.0)
    monkeypatch.setattr(weaviate_client, "_TIMEOUT", Timeout(init=60, query=60, insert=60))
