"""The paper's gate: a structured self-reflection that attributes the outcome (equation (6), reading 15)."""

from runtime.diagnosis import read_diagnosis
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
    """Label, confidence, misleading memories and an experience of each stage.

    Raises:
        RunStopped: nothing on the endpoint can work.
    """
    indices = case.indices()
    return await judge(
        model,
        key,
        case_messages(prompts["gate"], case, trajectory_chars),
        diagnosis_schema(attribution=True, usefulness=usefulness),
        lambda text: read_diagnosis(text, indices),
    )
