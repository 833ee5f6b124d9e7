"""A model whose silence ends the job instead of the episode, while there are further attempts of the job.

An endpoint that answers nobody is given up after some calls in a row, and the run pauses. What an episode has met until
then must not stand in its log: the next attempt begins where the last one was recorded, and asks again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

from runtime.errors import ModelUnavailable
from runtime.ports import CallKey, ChatAnswer, ChatModel, ChatRequest, Job
from runtime.schedule import ATTEMPTS


class _NotYet(Exception):
    """No answer, which no stage is to make anything of."""

    def __init__(self, error: ModelUnavailable) -> None:
        self.error = error
        super().__init__(str(error))


class _Insisting(ChatModel):
    """`model`, whose silence passes every stage."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    @override
    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        """As `ChatModel.complete`."""
        try:
            return await self._model.complete(request, key)
        except ModelUnavailable as error:
            raise _NotYet(error) from error


def asked_by(job: Job, model: ChatModel) -> ChatModel:
    """What the stages of `job` ask: on its last attempt `model` itself, whose silence is theirs to record.

    Attempts count on when a run is resumed: of as many as a job is given, one is the last by this rule.
    """
    return _Insisting(model) if job.attempt % ATTEMPTS else model


@contextmanager
def tried_again() -> Iterator[None]:
    """Around the stages of a job.

    Raises:
        ModelUnavailable: another attempt of the job may get an answer.
    """
    try:
        yield
    except _NotYet as silence:
        raise silence.error from silence.error.__cause__
