"""What a command that is no server tells about itself: warnings, on stderr."""

from infra.telemetry import configure
from workers.configuration import LoggingSettings
from workers.version import VERSION


def quiet_logs(settings: LoggingSettings) -> None:
    """Log lines of this process go to stderr, from `warning` on unless the configuration says otherwise."""
    as_json = {"auto": None, "console": False, "json": True}[settings.format]
    level = "warning" if settings.level == "info" else settings.level
    configure(json=as_json, level=level, version=VERSION)
