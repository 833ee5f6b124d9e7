"""What turns out about a run's models, in its log: what endpoints do not take, and that another model answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import anyio

from events.codec import decode
from events.ids import RUN_STREAM, episode_stream
from events.kinds import Noted
from events.log import Recorded
from infra.calls import CallStore, UnreadableCall, calls_of
from infra.capabilities import NOTHING_LEARNT, Abilities, Learnt, Place, facts, learnt_from, shown
from infra.model_errors import said
from infra.model_list import Listed
from infra.openai_client import Clients
from runtime.logger import Logger
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, EventLog, Role
from workers.configuration import ROLES, Configuration
from workers.run_stream import tell

_log = Logger("chime.model")

#: topic of the note on what an endpoint does not take
CAPABILITIES = "capabilities"
#: topic of the note on a model that has changed under its name
MODEL_CHANGED = "model_changed"

#: what a list of models may say of a window and be meant, tokens
_LEAST_WINDOW = 1024
#: changes of one model that are noted in one run: a router's servers may each have a name
_CHANGES = 3


@dataclass(frozen=True, slots=True)
class Served:
    """What an endpoint calls the model that has answered."""

    model: str
    #: of its build and settings; "" where it does not say
    fingerprint: str

    def differs(self, other: "Served") -> bool:
        """Whether both say something, and not the same."""
        pairs = ((self.model, other.model), (self.fingerprint, other.fingerprint))
        return any(one and two and one != two for one, two in pairs)


class Notes:
    """Of one run, as this process knows them."""

    def __init__(self, log: EventLog, calls: CallStore, clients: Clients) -> None:
        """Nothing is read yet.

        Args:
            log: of the run.
            calls: its recorded calls: what answered before this process began.
            clients: what they have learnt belongs to all runs of the process; each run notes what it is played with.
        """
        self._log, self._calls, self._clients = log, calls, clients
        self._noted: dict[Place, Learnt] = {}
        self._known: dict[Place, list[Served]] = {}
        self._beginning = anyio.Lock()

    def read(self, stream: Sequence[Recorded], places: Mapping[Role, Place]) -> None:
        """Take over what the run's own stream says, whoever has learnt it."""
        self._noted = learnt_from(one.facts for one in _notes(stream, CAPABILITIES))
        for place in set(places.values()):
            if (learnt := self._noted.get(shown(place))) is not None:
                self._clients.learnt[place] = self._clients.learnt.get(place, NOTHING_LEARNT).also(learnt)

    async def learnt(self, place: Place) -> None:
        """Note what was learnt of `place`, unless the log has it."""
        if (learnt := self._clients.learnt.get(place)) is None:
            return
        noted = self._noted.get(shown(place), NOTHING_LEARNT)
        if noted.abilities.also(learnt.abilities) == noted.abilities:
            return
        # Before it is written: calls that end meanwhile have the same to say.
        self._noted[shown(place)] = noted.also(learnt)
        try:
            there = learnt_from(one.facts for one in _notes(await self._log.read_stream(RUN_STREAM), CAPABILITIES))
            before = there.get(shown(place), NOTHING_LEARNT)
            if before.abilities.also(learnt.abilities) != before.abilities:
                await tell(self._log, Noted(topic=CAPABILITIES, facts=facts(place, before.also(learnt))))
        except BaseException:
            self._noted[shown(place)] = noted
            raise

    async def answered(self, place: Place, roles: Sequence[Role], answer: ChatAnswer) -> None:
        """Warn and note where another model answers than the one that the run began with."""
        now = _served(answer.model, answer.fingerprint)
        if (known := self._known.get(place)) is None:
            async with self._beginning:
                if place not in self._known:
                    self._known[place] = [await self._first(place, roles) or now]
            known = self._known[place]
        if not all(one.differs(now) for one in known) or len(known) > _CHANGES:
            return
        known.append(now)
        _log.warning(
            "model_changed", run_id=self._log.run, model=place.model, before=known[0].model, now=now.model,
            fingerprint_before=known[0].fingerprint, fingerprint_now=now.fingerprint,
        )  # fmt: skip
        try:
            await self._note_change(place, known[0], now)
        except BaseException:
            known.remove(now)
            raise

    async def _note_change(self, place: Place, before: Served, now: Served) -> None:
        base_url, asked = shown(place)
        where = {"base_url": base_url, "model": asked}
        served = {"served": now.model, "fingerprint": now.fingerprint}
        noted = [one.facts for one in _notes(await self._log.read_stream(RUN_STREAM), MODEL_CHANGED)]
        here = [one for one in noted if one.items() >= where.items()]
        if len(here) < _CHANGES and not any(one.items() >= served.items() for one in here):
            earlier = {"served_before": before.model, "fingerprint_before": before.fingerprint}
            await tell(self._log, Noted(topic=MODEL_CHANGED, facts={**where, **earlier, **served}))

    async def _first(self, place: Place, roles: Sequence[Role]) -> Served | None:
        """What answered in the run's first episode; None where no record says so."""
        try:
            records = await calls_of(self._calls, self._log.run, episode_stream(0))
        except UnreadableCall:
            return None
        named = [one for one in records if one.model and one.role in roles and one.asked in ("", place.model)]
        return _served(named[0].model, named[0].fingerprint) if named else None


def windows(configuration: Configuration, listed: Listed) -> dict[Place, int]:
    """What the models at the planner's address hold, tokens, where the list says so and the settings do not."""
    there, found = configuration.endpoint("planner").base_url, dict[Place, int]()
    for role in ROLES:
        endpoint, model = configuration.endpoint(role), configuration.model(role).model
        window = listed.window(model) or 0
        # What is less than any request of ours says something else.
        if endpoint.base_url == there and not endpoint.context_tokens and window >= _LEAST_WINDOW:
            found[Place(there, model)] = window
    return found


async def note_windows(log: EventLog, windows: Mapping[Place, int]) -> None:
    """What a list of models says when a run begins, as refusals would: who works on it fits requests to that."""
    for place, window in windows.items():
        learnt = Learnt(abilities=Abilities(window=window), evidence=(f"GET /models: {window} tokens",))
        await tell(log, Noted(topic=CAPABILITIES, facts=facts(place, learnt)))


class NotedModel:
    """A `ChatModel` around another one whose endpoints' ways are noted. What it notes is recorded before."""

    def __init__(self, model: ChatModel, places: Mapping[Role, Place], notes: Notes) -> None:
        self._model, self._places, self._notes = model, places, notes
        self._roles: dict[Place, list[Role]] = {
            place: [role for role, one in places.items() if one == place] for place in places.values()
        }

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `runtime.ports.ChatModel.complete`.

        Raises:
            Unreachable: the log does not take the note.
        """
        answer = await self._model.complete(request, key)
        place = self._places[request.role]
        await self._notes.learnt(place)
        await self._notes.answered(place, self._roles[place], answer)
        return answer


@lru_cache(maxsize=64)
def _served(model: str, fingerprint: str) -> Served:
    """Names as they may be shown and kept: a server may put anything there. As a rule each answer has the same."""
    return Served(said(model), said(fingerprint))


def _notes(stream: Sequence[Recorded], topic: str) -> Iterator[Noted]:
    for one in stream:
        if one.kind == "noted" and isinstance(event := decode(one), Noted) and event.topic == topic:
            yield event
