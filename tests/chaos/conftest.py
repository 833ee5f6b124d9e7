"""What tests of chaos borrow from the tests of workers, and the servers they may have."""

import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from infra.redis_server import wheel_binary


def _loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_worlds = _loaded(Path(__file__).parents[1] / "workers" / "conftest.py", "worlds_of_workers")
brisk, playing, toy_key, world = _worlds.brisk, _worlds.playing, _worlds.toy_key, _worlds.world


@pytest.fixture
def new_folder() -> Iterator[Callable[[], Path]]:
    """Makes folders with short names: a unix socket's path has 108 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="chaos", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield lambda: Path(tempfile.mkdtemp(dir=folder))


@pytest.fixture(scope="session")
def server_binaries() -> list[str]:
    """Every kind of server this machine has."""
    own = shutil.which("redis-server")
    return [*([own] if own else []), str(wheel_binary())]
