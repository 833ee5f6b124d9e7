import re
import subprocess
import sys
from pathlib import Path

from runtime.logger import Logger

PROJECT = Path(__file__).parent.parent.parent

SETTING = """
import logging, sys
from events.late import Late
from runtime.logger import Logger, settle_late
log, telemetry = Logger("chime.here"), Late("infra.telemetry")
settle_late(lambda: telemetry.configure(json=True, level="warning"))
print("structlog" in sys.modules)
"""


def lines(code: str) -> tuple[str, list[str]]:
    """What a process of its own writes to stdout, and its lines on stderr."""
    done = subprocess.run([sys.executable, "-c", SETTING + code], cwd=PROJECT, capture_output=True, text=True)
    return done.stdout, done.stderr.splitlines()


def test_structlog_is_loaded_with_the_first_line_and_settled_before_it() -> None:
    """Nothing is loaded until a line is written; that one is written as was said before."""
    out, err = lines('log.info("quiet"); log.warning("said", n=1); print("structlog" in sys.modules)')
    assert out.split() == ["False", "True"], err
    assert len(err) == 1
    assert '"event":"said"' in err[0].replace(" ", "")
    assert '"logger":"chime.here"' in err[0].replace(" ", "")


def test_a_warning_of_another_library_is_written_the_same_way() -> None:
    """The first line may be redis-py's: it is one JSON line like ours, and so are those after it."""
    out, err = lines('logging.getLogger("redis").warning("lost"); logging.getLogger("redis").warning("again")')
    assert out.split() == ["False"]
    assert [re.findall(r'"event": ?"(\w+)"', line) for line in err] == [["lost"], ["again"]], err


def test_who_configures_in_the_meantime_is_obeyed() -> None:
    """A process that becomes a worker says anew how it logs: what was put off does not come after it."""
    _, err = lines('telemetry.configure(json=True, level="error"); log.warning("quiet"); log.error("said")')
    assert [re.findall(r'"event": ?"(\w+)"', line) for line in err] == [["said"]], err


def test_every_logger_is_a_late_one() -> None:
    """Who asks structlog itself for a logger loads it, and writes lines before it is settled how."""
    asking = [
        str(path.relative_to(PROJECT))
        for package in ("events", "infra", "runtime", "workers")
        for path in (PROJECT / package).rglob("*.py")
        if re.search(r"structlog\.get_logger\(|getLogger\(__name__", path.read_text())
    ]
    assert sorted(asking) == ["infra/telemetry.py", "runtime/logger.py"]


def test_a_logger_is_no_more_than_its_lines() -> None:
    """Python's own questions do not load structlog."""
    assert not hasattr(Logger("chime.here"), "__wrapped__")
