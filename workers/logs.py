"""What a command that is no server tells about itself: warnings, on stderr."""

from events.late import Late
from runtime.logger import settle_late
from workers.configuration import LoggingSettings
from workers.version import VERSION

_telemetry = Late("infra.telemetry")


def quiet_logs(settings: LoggingSettings) -> None:
    """Log lines of this process go to stderr, from `warning` on unless the configuration says otherwise."""
    as_json = {"auto": None, "console": False, "json": True}[settings.format]
    level = "warning" if settings.level == "info" else settings.level
    settle_late(lambda: _telemetry.configure(json=as_json, level=level, version=VERSION))
