"""Assistant messages that solve a BFCL task, made from its ground truth, and messages that look alike but fail.

Pure data in and out; runs inside the BFCL host and needs nothing but the standard library.
"""

import ast
import json
from typing import Any

Turns = list[list[dict[str, Any]]]


def says(text: str) -> dict[str, Any]:
    """An assistant message of text."""
    return {"role": "assistant", "content": text}


def calls(wanted: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """An assistant message that calls tools by (name, arguments)."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name.replace(".", "_"), "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(wanted)
        ],
    }


def live(gold: list[dict[str, Any]]) -> tuple[Turns, Turns]:
    """Right and wrong turns of a task whose ground truth is calls with lists of acceptable values."""
    wanted = [(name, _arguments(options)) for call in gold for name, options in call.items()]
    wrong = [(name, _spoiled(arguments)) for name, arguments in wanted]
    return [[calls(wanted)]], [[calls(wrong)]]


def relevance(names: list[str], *, relevant: bool) -> tuple[Turns, Turns]:
    """Right and wrong turns where all that counts is whether a tool is called."""
    called: Turns = [[calls([(names[0] if names else "answer", {})])]]
    text: Turns = [[says("None of the functions that I have fits this question.")]]
    return (called, text) if relevant else (text, called)


def multi_turn(gold: list[list[str]], functions: list[dict[str, Any]]) -> tuple[Turns, Turns]:
    """Right turns from call expressions; the wrong ones leave out what the last turn with calls should do.

    Args:
        gold: per turn, call expressions such as `cd(folder='a')`.
        functions: their documents, which name positional arguments.
    """
    parameters = {doc["name"]: list(doc["parameters"]["properties"]) for doc in functions}
    turns = []
    for expressions in gold:
        wanted = [_call(expression, parameters) for expression in expressions]
        turns.append([*([calls(wanted)] if wanted else []), says("That is all I can do here.")])
    last = max((index for index, expressions in enumerate(gold) if expressions), default=0)
    wrong = [messages if index != last else messages[-1:] for index, messages in enumerate(turns)]
    return turns, wrong


def answer(acceptable: list[str]) -> tuple[Turns, Turns]:
    """Right and wrong turns of a question with a short answer."""
    right = f"{{'answer': '{acceptable[0]}', 'context': 'as found'}}"
    return [[says(right)]], [[says("{'answer': 'I do not know', 'context': 'I do not know'}")]]


def remembering(questions: list[str], names: list[str], conversation: str) -> tuple[Turns, Turns]:
    """Turns of a prerequisite conversation that store what the user says; the wrong ones store nothing."""
    turns: Turns = []
    for index, text in enumerate(questions):
        if "archival_memory_add" in names:
            key = f"note_{conversation}_{index}"
            arguments = {"key": key, "value": text[:1900]}
            call = ("archival_memory_add", arguments if "core_memory_key_search" in names else {"text": text[:1900]})
        else:
            call = ("memory_append", {"text": text[:280] + "\n"})
        turns.append([calls([call]), says("Noted.")])
    return turns, [[says("I see.")] for _ in questions]


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    return {name: _chosen(values) for name, values in options.items() if any(value != "" for value in values)}


def _chosen(values: list[Any]) -> Any:
    """The first acceptable value that is not the mark of an omitted argument."""
    return _plain(next(value for value in values if value != ""))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _arguments({name: part if isinstance(part, list) else [part] for name, part in value.items()})
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value


def _spoiled(arguments: dict[str, Any]) -> dict[str, Any]:
    for name, value in arguments.items():
        return {**arguments, name: _other(value)}
    return {"unexpected": True}


def _other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 10007
        case str():
            return f"other than {value}"
        case _:
            return "nothing of the kind"


def _call(expression: str, parameters: dict[str, list[str]]) -> tuple[str, dict[str, Any]]:
    node = ast.parse(expression.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise TypeError(f"not a call: {expression}")
    names = parameters.get(node.func.id, [])
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, node.args, strict=False)}
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return node.func.id, arguments
