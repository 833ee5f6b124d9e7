"""No gate (reading 23): an experience of each stage, credited by the outcome alone."""

from runtime.diagnosis import read_experiences
from runtime.gate import Case, Judged, case_messages, diagnosis_schema, judge
from runtime.ports import CallKey, ChatModel
from runtime.prompting import Prompts

VERSION = 1


async def reflect(
    case: Case,
    model: ChatModel,
    key: CallKey,
    prompts: Prompts,
    *,
    trajectory_chars: int,
    usefulness: bool = False,
) -> Judged:
    """Label both, confidence 1, nothing misleading, and an experience of each stage.

    Raises:
        RunStopped: nothing on the endpoint can work.
    """
    return await judge(
        model,
        key,
        case_messages(prompts["outcome"], case, trajectory_chars),
        diagnosis_schema(attribution=False, usefulness=usefulness),
        read_experiences,
    )
