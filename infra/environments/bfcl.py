# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "bfcl-eval==2026.3.23",
#   "beautifulsoup4==4.15.0",
#   "certifi==2026.10.19.post1",
#   "charset-normalizer==3.5.3",
#   "filelock==4.3.1",
#   "html2text==2025.4.15",
#   "idna==3.20",
#   "mpmath==1.3.0",
#   "numpy==2.4.6",
#   "overrides==7.7.0",
#   "python-dotenv==1.2.4",
#   "rank-bm25==0.2.2",
#   "requests==2.34.2",
#   "soupsieve==4.1.3",
#   "tenacity==9.2.1",
#   "tqdm==4.70.1",
#   "typing-extensions==4.16.0",
#   "urllib3==2.8.0",
# ]
# ///
"""BFCL v4 from the `bfcl-eval` wheel, judged by its own checkers; runs in the host, in its own virtual environment.

Live categories are single-shot, the multi-turn, web search and memory categories are dialogs. A memory category's
prerequisite conversations are tasks of their own: each depends on the one before it, a question on the last one, and
what they leave in memory travels as the `artifact` of their evaluation, never over a disk that hosts share.

The wheel's own list of dependencies is 6 GB of vendors' libraries. The checkers need none of them, so the modules
that import them are replaced by empty ones before the first import; no module that judges or executes is replaced.
"""

import copy
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import types
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# before the wheel is imported: where it puts its folders, and what it must not import
os.environ["BFCL_PROJECT_ROOT"] = tempfile.mkdtemp(prefix="bfcl-")


def _stand_in(name: str, **contents: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update({"__all__": list(contents), **contents})
    sys.modules[name] = module


class _Models(defaultdict[str, Any]):
    """Every model is one whose tools have "_" for "." in their names, as ours do."""

    def __init__(self) -> None:
        super().__init__(lambda: types.SimpleNamespace(underscore_to_dot=True))


_stand_in("bfcl_eval.constants.model_config", MODEL_CONFIG_MAPPING=_Models())
# tables of the leaderboard (pandas)
_stand_in("bfcl_eval.eval_checker.eval_runner_helper")
# languages that none of our categories has (tree-sitter, which has no wheels for new Pythons)
_stand_in("bfcl_eval.model_handler.parser.java_parser", parse_java_function_call=None)
_stand_in("bfcl_eval.model_handler.parser.js_parser", parse_javascript_function_call=None)

# the stand-ins above must come first, hence E402 on every import below
import bfcl_answers  # type: ignore[import-not-found] # a neighbour, as the host finds it # noqa: E402
import bfcl_search  # type: ignore[import-not-found] # the same # noqa: E402
from bfcl_eval import utils as official  # noqa: E402
from bfcl_eval.constants import eval_config  # noqa: E402
from bfcl_eval.constants.default_prompts import (  # noqa: E402
    DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC,
    MAXIMUM_STEP_LIMIT,
)
from bfcl_eval.constants.enums import Language, ModelStyle, ReturnFormat  # noqa: E402
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING  # noqa: E402
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI  # noqa: E402
from bfcl_eval.eval_checker import eval_runner  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils  # noqa: E402
from bfcl_eval.model_handler.utils import (  # noqa: E402
    add_memory_instruction_system_prompt,
    convert_to_function_call,
    convert_to_tool,
)

_OFFICIAL_SEARCH = CLASS_FILE_PATH_MAPPING["WebSearchAPI"]
_stand_in("serpapi", GoogleSearch=bfcl_search.GoogleSearch)

LIVE = (
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
MEMORY = ("memory_kv", "memory_rec_sum", "memory_vector")
DOMAINS = (*LIVE, *MULTI_TURN, "web_search_base", *MEMORY)


class Handler:
    """How an OpenAI function-calling model's answer is read: a list of {name: arguments as text}, or text."""

    def decode_ast(self, result: Any, language: Any, has_tool_call_tag: bool) -> list[dict[str, Any]]:
        """Calls as data; raises for anything else, which the checkers take for "no call"."""
        del language, has_tool_call_tag
        return [{name: json.loads(arguments) for name, arguments in call.items()} for call in result]

    def decode_execute(self, result: Any, has_tool_call_tag: bool = False) -> list[str]:
        """Calls as expressions to evaluate; raises for anything else."""
        del has_tool_call_tag
        return convert_to_function_call(result)  # type: ignore[no-any-return] # the wheel has no types


@dataclass(kw_only=True)
class Episode:
    """One task being played, with what the checkers will be shown."""

    domain: str
    task_id: str
    #: as the agent sees it; its questions grow a system message in memory categories
    entry: dict[str, Any]
    #: names the simulated backends of this episode, in a process where they are global
    tag: str
    #: where a memory backend keeps its snapshot
    folder: Path | None = None
    instances: dict[str, Any] = field(default_factory=dict)
    #: per turn, what the model answered at each step
    responses: list[list[Any]] = field(default_factory=list)
    #: the same of the turn that is going on
    current: list[Any] = field(default_factory=list)
    turn: int = 0
    #: executed steps of this turn
    executed: int = 0
    steps: int = 0
    errors: int = 0
    ended: str | None = None

    @property
    def preparatory(self) -> bool:
        """Whether this is a prerequisite conversation."""
        return bool(official.is_memory_prereq(self.task_id))


class Bfcl:
    """The benchmark class that the host serves."""

    def __init__(self) -> None:
        self._handler = Handler()
        self._entries: dict[str, dict[str, dict[str, Any]]] = {}
        self._golden: dict[str, dict[str, Any]] = {}
        self._episode: Episode | None = None
        self._episodes = 0

    # -- what there is -----------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """See the protocol's `describe`."""
        version = importlib.metadata.version("bfcl-eval")
        return {
            "env": "bfcl",
            "version": version,
            "domains": {domain: _count(domain) for domain in _available()},
            "needs": {"user_llm": False, "judge_llm": False, "network": False, "data": False},
            "limits": {"steps_a_turn": MAXIMUM_STEP_LIMIT},
            "evaluator": "bfcl-eval",
            "evaluator_version": version,
        }

    def tasks(self, domain: str | None = None, split: str | None = None) -> list[dict[str, Any]]:
        """All tasks, or a domain's, in the order the official runner plays them; there are no splits of its own."""
        del split
        return [
            self._task(name, entry)
            for name in ([domain] if domain is not None else _available())
            for entry in self._entries_of(name).values()
        ]

    # -- an episode --------------------------------------------------------------------------------------------------

    def reset(self, episode_id: str, domain: str, task_id: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
        """Open a task; nothing here is random, so `seed` has nothing to do."""
        del episode_id, seed
        self._drop()
        self._episodes += 1
        entry = copy.deepcopy(self._entry(domain, task_id))
        episode = self._episode = Episode(domain=domain, task_id=task_id, entry=entry, tag=f"chime{self._episodes}x")
        if domain not in LIVE:
            self._prepare(episode, options)
        first = entry["question"][0]
        split = next((at for at, message in enumerate(first) if message["role"] != "system"), len(first))
        return {
            "system": "\n\n".join(message["content"] for message in first[:split]),
            "messages": first[split:],
            "tools": _tools(entry["function"]),
            "mode": "single_shot" if domain in LIVE else "dialog",
            "done": False,
        }

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        """One assistant message: the whole answer of a live task, one step of a dialog."""
        episode = self._playing()
        asked = action.get("tool_calls") or []
        response: Any = [{call["function"]["name"]: call["function"]["arguments"]} for call in asked]
        if not asked:
            response = action.get("content") or ""
        episode.steps += 1
        episode.current.append(response)
        if episode.domain in LIVE:
            episode.ended = "single_shot"
            return self._result(episode, [])
        try:
            wanted = self._handler.decode_execute(response)
        except Exception:  # noqa: BLE001 - the official loop: whatever cannot be read as calls ends the turn
            wanted = []
        if multi_turn_utils.is_empty_execute_response(wanted):
            # the history must answer every call, also those that could not be read
            unread = [_tool_message(call, "Error during execution: the arguments cannot be read") for call in asked]
            episode.errors += len(unread)
            return self._end_turn(episode, unread)
        results = self._execute(episode, wanted)
        episode.errors += sum(result.startswith("Error during execution") for result in results)
        episode.executed += 1
        if episode.executed > MAXIMUM_STEP_LIMIT:
            episode.ended = "force_terminated"
            episode.responses.append(episode.current)
        return self._result(episode, [_tool_message(call, text) for call, text in zip(asked, results, strict=False)])

    def evaluate(self) -> dict[str, Any]:
        """The official checker's word; what it says beside the kind of error holds reference answers and stays here."""
        episode = self._playing()
        if episode.preparatory:
            evaluation = {
                "reward": 1.0,
                "success": True,
                "breakdown": {"unscored": True},
                "artifact": self._snapshot(episode),
            }
        elif episode.ended is None:
            evaluation = {"reward": 0.0, "success": False, "breakdown": {"ended_early": True}}
        else:
            verdict = self._judge(episode)
            valid = bool(verdict["valid"])
            evaluation = {"reward": float(valid), "success": valid, "breakdown": {"error_type": _error_type(verdict)}}
        self._drop()
        return evaluation

    def oracle(self, domain: str, task_id: str) -> dict[str, Any]:
        """The right messages of a task and wrong ones."""
        entry = self._entry(domain, task_id)
        names = [doc["name"].replace(".", "_") for doc in entry["function"]]
        questions = [[m["content"] for m in turn if m["role"] == "user"] for turn in entry["question"]]
        if official.is_memory_prereq(task_id):
            conversation = task_id.rsplit("_", 1)[1].replace("-", "_")
            pair = bfcl_answers.remembering([" ".join(turn) for turn in questions], names, conversation)
        elif domain in {"live_irrelevance", "live_relevance"}:
            pair = bfcl_answers.relevance(names, relevant=domain == "live_relevance")
        elif domain in LIVE:
            pair = bfcl_answers.live(self._gold(domain, task_id))
        elif domain in MULTI_TURN:
            later = [doc for docs in entry.get("missed_function", {}).values() for doc in docs]
            pair = bfcl_answers.multi_turn(self._gold(domain, task_id), [*entry["function"], *later])
        else:
            pair = bfcl_answers.answer(self._gold(domain, task_id))
        return {"text": questions[0][0], "turns": pair[0], "saboteur": pair[1], "family": names}

    def close(self) -> None:
        """Remove what the wheel and the episodes put on disk."""
        self._drop()
        shutil.rmtree(os.environ["BFCL_PROJECT_ROOT"], ignore_errors=True)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _entries_of(self, domain: str) -> dict[str, dict[str, Any]]:
        if domain not in _available():
            raise KeyError(f"no domain {domain!r}; there are {', '.join(_available())}")
        if domain not in self._entries:
            entries = official.load_dataset_entry(domain)
            if domain in MEMORY:
                entries.sort(key=official.sort_key)
            self._entries[domain] = {entry["id"]: entry for entry in entries}
        return self._entries[domain]

    def _entry(self, domain: str, task_id: str) -> dict[str, Any]:
        entries = self._entries_of(domain)
        if task_id not in entries:
            raise KeyError(f"no task {task_id!r} in {domain}")
        return entries[task_id]

    def _task(self, domain: str, entry: dict[str, Any]) -> dict[str, Any]:
        preparatory = bool(official.is_memory_prereq(entry["id"]))
        return {
            "task_id": entry["id"],
            "domain": domain,
            "tags": [entry["scenario"]] if "scenario" in entry else list(entry.get("involved_classes", [])),
            # the wheel lists the whole chain; the last link of it implies the others
            "depends_on": entry.get("depends_on", [])[-1:],
            "preparatory": preparatory,
        }

    def _gold(self, domain: str, task_id: str) -> Any:
        """The ground truth of a task; the wheel matches it by place, as the ids differ in some categories."""
        if domain not in self._golden:
            entries = official.load_dataset_entry(domain, include_prereq=False, include_language_specific_hint=False)
            golden = official.load_ground_truth_entry(domain)
            self._golden[domain] = {
                entry["id"]: gold["ground_truth"] for entry, gold in zip(entries, golden, strict=True)
            }
        return self._golden[domain][task_id]

    def _prepare(self, episode: Episode, options: dict[str, Any]) -> None:
        """Make the simulated backends of an episode and give them their first state."""
        entry = episode.entry
        if episode.domain in MEMORY:
            episode.folder = Path(tempfile.mkdtemp(prefix="memory-"))
            official.populate_initial_settings_for_memory_test_cases([entry], episode.folder)
            self._remember(episode, options.get("artifacts") or {})
        elif official.is_web_search(episode.domain):
            official.populate_initial_settings_for_web_search_test_cases([entry])
            _choose_search(options.get("retrieval") or {})
        self._execute(episode, [])
        if episode.domain in MEMORY:
            (instance,) = episode.instances.values()
            category = official.extract_test_category_from_id(episode.task_id)
            add_memory_instruction_system_prompt(entry["question"], category, entry["scenario"], instance)

    def _remember(self, episode: Episode, artifacts: dict[str, Any]) -> None:
        """Put the memory that earlier conversations left where the backend looks for it."""
        for task_id in episode.entry.get("depends_on", [])[-1:]:
            if task_id not in artifacts:
                raise ValueError(f"{episode.task_id} needs the artifact of {task_id}, or null where that one failed")
            if artifacts[task_id] is None:
                # as the official runner does after a conversation that failed: the memory starts empty
                continue
            place = _snapshot_file(episode)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(artifacts[task_id]["memory"]), encoding="utf-8")

    def _snapshot(self, episode: Episode) -> dict[str, Any]:
        (instance,) = episode.instances.values()
        instance._flush_memory_to_local_file()  # noqa: SLF001 - what the official runner calls at this point
        return {"memory": json.loads(_snapshot_file(episode).read_text(encoding="utf-8"))}

    def _execute(self, episode: Episode, wanted: list[str]) -> list[str]:
        """Evaluate call expressions on the episode's backends, as the official runner does."""
        results, episode.instances = multi_turn_utils.execute_multi_turn_func_call(
            wanted,
            episode.entry.get("initial_config", {}),
            episode.entry["involved_classes"],
            episode.tag,
            episode.task_id,
            long_context="long_context" in episode.domain,
            is_evaL_run=False,
        )
        return list(results)

    def _end_turn(self, episode: Episode, unread: list[dict[str, Any]]) -> dict[str, Any]:
        """Close a turn in which the model has nothing more to call; the next one's messages, if there is one."""
        episode.responses.append(episode.current)
        episode.current, episode.executed = [], 0
        episode.turn += 1
        questions = episode.entry["question"]
        if episode.turn == len(questions):
            episode.ended = "agent_stop"
            return self._result(episode, unread)
        held_out = episode.entry.get("missed_function", {}).get(str(episode.turn))
        if held_out is None:
            return self._result(episode, [*unread, *questions[episode.turn]])
        episode.entry["function"].extend(held_out)
        said = {"role": "user", "content": DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}
        return {**self._result(episode, [*unread, said]), "tools": _tools(episode.entry["function"])}

    @staticmethod
    def _result(episode: Episode, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "messages": messages,
            "done": episode.ended is not None,
            "terminated_by": episode.ended,
            "steps": episode.steps,
            "errors": episode.errors,
        }

    def _judge(self, episode: Episode) -> dict[str, Any]:
        """What the official scorer of the category says."""
        domain, task_id = episode.domain, episode.task_id
        # a copy: the scorers delete from what they are shown
        entry = copy.deepcopy(episode.entry)
        common = {"handler": self._handler, "prompt_entry": entry, "model_name": episode.tag, "test_category": domain}
        if domain in {"live_irrelevance", "live_relevance"}:
            return eval_runner._evaluate_single_relevance_entry(  # type: ignore[no-any-return] # noqa: SLF001 - the scorers have no public names
                index=task_id, model_result_item=episode.current[0], **common
            )
        gold = copy.deepcopy(self._gold(domain, task_id))
        if domain in LIVE:
            return eval_runner._evaluate_single_ast_entry(  # type: ignore[no-any-return] # noqa: SLF001
                index=task_id,
                model_result_item=episode.current[0],
                possible_answer_item=gold,
                language=Language.PYTHON,
                return_format=ReturnFormat.PYTHON,
                **common,
            )
        if domain in MULTI_TURN:
            return eval_runner._evaluate_single_multi_turn_entry(  # type: ignore[no-any-return] # noqa: SLF001
                test_entry_id=task_id, model_result_list=episode.responses, ground_truth_list=gold, **common
            )
        return eval_runner._evaluate_single_agentic_entry(  # type: ignore[no-any-return] # noqa: SLF001
            index=task_id, model_result_list=episode.responses, possible_answer_item=gold, **common
        )

    def _playing(self) -> Episode:
        if self._episode is None:
            raise ValueError("no episode: reset first")
        return self._episode

    def _drop(self) -> None:
        """Forget the episode, its backends (the wheel would keep them for ever) and its files."""
        if self._episode is not None:
            backends = vars(multi_turn_utils)
            for name in [name for name in backends if name.startswith(self._episode.tag)]:
                del backends[name]
            if self._episode.folder is not None:
                shutil.rmtree(self._episode.folder, ignore_errors=True)
            self._episode = None


def _available() -> tuple[str, ...]:
    """The vector memory needs a model that the lean installation leaves out."""
    vector = all(importlib.util.find_spec(name) for name in ("faiss", "sentence_transformers"))
    return tuple(domain for domain in DOMAINS if vector or domain != "memory_vector")


def _count(domain: str) -> int:
    """The number of tasks of a domain, from the lines of its files: loading them all takes seconds."""
    name = "memory" if domain in MEMORY else domain.removesuffix("_base") if "web_search" in domain else domain
    files = [eval_config.PROMPT_PATH / f"BFCL_v4_{name}.json"]
    if domain in MEMORY:
        files += sorted(eval_config.MEMORY_PREREQ_CONVERSATION_PATH.glob("memory_*.json"))
    return sum(bool(line.strip()) for file in files for line in file.read_bytes().splitlines())


def _tools(functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tools = convert_to_tool(functions, GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS)
    for tool in tools:
        # what a function answers is no part of an OpenAI tool; strict endpoints refuse it
        tool["function"].pop("response", None)
    return tools  # type: ignore[no-any-return] # the wheel has no types


def _tool_message(call: dict[str, Any], content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.get("id", ""), "content": content}


def _snapshot_file(episode: Episode) -> Path:
    assert episode.folder is not None  # noqa: S101 - only memory episodes come here
    structure = str(official.get_directory_structure_by_id(episode.task_id))
    return episode.folder / structure / "memory_snapshot" / f"{episode.entry['scenario']}_final.json"


def _choose_search(retrieval: dict[str, Any]) -> None:
    """Which search the tools of this episode have: a corpus, the official service where there is a key, or none."""
    corpus = retrieval.get("corpus")
    bfcl_search.WebSearchAPI.corpus = bfcl_search.corpus_at(corpus) if corpus else None
    live = not corpus and bfcl_search.has_key()
    CLASS_FILE_PATH_MAPPING["WebSearchAPI"] = _OFFICIAL_SEARCH if live else bfcl_search.__name__


def _error_type(verdict: dict[str, Any]) -> str | None:
    error = verdict.get("error")
    nested = error.get("error_type") if isinstance(error, dict) else None
    return verdict.get("error_type") or nested
