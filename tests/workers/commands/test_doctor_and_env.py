def test_doctor_ends_with_3_when_something_is_missing(chime, monkeypatch):
    """`doctor` prints a row a check with the fix, and ends with 3 where one fails."""
    out = chime("doctor")
    assert "warn: environment bfcl: chime env install bfcl" in out
    monkeypatch.setenv("CHIME_REDIS_URL", "unix:///nowhere/s")
    rows = chime.json("doctor", code=3)["data"]
    assert [row["check"] for row in rows if row["status"] == "fail"] == ["redis"]


def test_env_list(chime, folder):
    """Environments are listed with whether they are there; nothing is made."""
    rows = chime.json("env", "list")["data"]
    assert {row["environment"]: row["state"] for row in rows} == {"toy": "built in", "bfcl": "not installed"}
    assert "chime env install bfcl" in chime("env")
    assert list(folder.iterdir()) == []


def test_env_domains(chime):
    """With --domains the environments that are there say what they hold."""
    rows = chime.json("env", "list", "--domains")["data"]
    toy = next(row for row in rows if row["environment"] == "toy")
    assert sum(toy["domains"].values()) > 0


def test_env_install_of_what_needs_none(chime):
    """A built-in environment has nothing to install; an unknown one is refused with those there are."""
    assert "built in" in chime("env", "install", "toy")
    chime("env", "install", "nothing", code=2)
    assert "bfcl" in chime.err


def test_env_check(chime):
    """`env check toy` passes, row by row on stderr."""
    data = chime.json("env", "check", "toy", "--sample", "2")["data"]
    assert data
    assert all(row["ok"] for row in data)
    assert "no process left behind" in chime.err


def test_env_check_of_what_is_not_installed(chime):
    """Checking what is not installed ends with 3 and says how to install it."""
    chime("env", "check", "bfcl", code=3)
    assert "chime env install bfcl" in chime.err


def test_env_check_of_an_unknown_one(chime):
    """An unknown environment is refused with those there are."""
    chime("env", "check", "nothing", code=2)
    assert "toy" in chime.err
