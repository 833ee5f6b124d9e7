"""A replica without vectors: the same items, values, prunes and digests at every version."""

import pytest
from banked_run import RUN, BankedRun

from events.ids import BankVersion
from events.operations import Pruned
from infra.banks.replica import Replica, Versions, lightened
from infra.clock import SystemClock
from infra.list_log import ListLog


async def played(folds: int) -> BankedRun:
    """A run of so many versions in memory."""
    run = BankedRun(ListLog(RUN, SystemClock()), seed=9)
    await run.begin()
    await run.fold(folds)
    return run


async def test_it_says_what_the_full_one_says():
    """Digest, items and sizes of every version of the window, read at once or as they come."""
    run = await played(20)
    light, full = Versions(run.log, light=True), Replica(run.log)
    for _ in range(3):
        for version in range(run.window.oldest, len(run.versions)):
            thin, whole = await light.at(BankVersion(version)), await full.at(BankVersion(version))
            assert thin.digest() == whole.digest()
            assert thin.sizes() == whole.sizes()
            assert [(one.id, one.experience, one.delta_sum, one.n) for one in thin] == [
                (one.id, one.experience, one.delta_sum, one.n) for one in whole
            ]
        await run.fold(2)
        assert await light.newest() == await full.newest()


async def test_it_knows_what_was_pruned():
    """Each pruned item with the first version that lacks it."""
    run = await played(40)
    light = Versions(run.log, light=True)
    await light.newest()
    pruned = {
        one.id: version
        for version, operations in enumerate(run.operations, 1)
        for one in operations
        if isinstance(one, Pruned)
    }
    assert pruned
    for memory, version in pruned.items():
        assert light.prunes.gone(memory, BankVersion(version))
        assert not light.prunes.gone(memory, BankVersion(version - 1))
    stages = [light.prunes.count(stage, BankVersion(0), BankVersion(40)) for stage in ("planning", "execution")]
    assert sum(stages) == len(pruned)


async def test_it_has_no_vectors():
    """It takes little memory, and nobody finds anything in it by mistake."""
    run = await played(5)
    banks = await Versions(run.log, light=True).at(BankVersion(5))
    item = next(iter(banks))
    with pytest.raises(LookupError, match="no vectors"):
        banks.scenario_vector(item)
    with pytest.raises(LookupError, match="no vectors"):
        banks.nearest(["planning"], run.vector().exact())
    assert lightened(run.versions[5]).digest() == run.versions[5].digest()
