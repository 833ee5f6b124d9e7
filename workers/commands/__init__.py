"""The command line as a table: what there is, where it lives, and its one-line help.

Nothing is imported to draw a help page; a command's module is imported when the command is chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """One command: `module` holds it under the name `attribute`."""

    module: str
    attribute: str
    #: must equal the command's own short help
    help: str


@dataclass(frozen=True, slots=True)
class Noun:
    """A group of verbs; `default` is what the bare noun does."""

    help: str
    verbs: Mapping[str, Verb]
    default: str = "list"


TREE: Mapping[str, Verb | Noun] = {
    "demo": Verb("workers.commands.demo", "demo", "Run three arms on real tasks without a key, and compare them."),
    "init": Verb("workers.commands.init", "init", "Write a commented chime.toml into this folder."),
    "doctor": Verb("workers.commands.doctor", "doctor", "Check what Chime needs, with the fix for each thing missing."),
    "run": Noun(
        "Start runs, look at them, compare them.",
        {
            "start": Verb("workers.commands.run_start", "start", "Start a run over a benchmark's tasks."),
            "resume": Verb("workers.commands.run_start", "resume", "Go on with a run that was stopped."),
            "list": Verb("workers.commands.run", "list_runs", "List every run with its score."),
            "show": Verb("workers.commands.run", "show", "Show one run: header, progress, score, labels, cost."),
            "compare": Verb("workers.commands.run", "compare", "Compare two runs task by task."),
            "cancel": Verb("workers.commands.run_end", "cancel", "End a run for good; its log and banks stay."),
            "delete": Verb("workers.commands.run_end", "delete", "Delete a run: log, blobs and queue keys."),
            "export-config": Verb(
                "workers.commands.run", "export_config", "Print a run's configuration as chime.toml."
            ),
        },
    ),
    "episode": Noun(
        "Look at the episodes of a run.",
        {
            "list": Verb("workers.commands.episode", "list_episodes", "List the episodes of a run."),
            "show": Verb("workers.commands.episode", "show", "Show one episode, stage by stage."),
        },
    ),
    "call": Noun(
        "Look at the model calls of a run.",
        {
            "list": Verb("workers.commands.call", "list_calls", "List the model calls of a run."),
            "show": Verb("workers.commands.call", "show", "Show one call: what was sent, what came back."),
            "replay": Verb("workers.commands.call", "replay", "Ask one call's question again, and compare."),
        },
    ),
    "memory": Noun(
        "Look at the banks at any version.",
        {
            "list": Verb("workers.commands.memory", "list_items", "List every live item at a version."),
            "show": Verb("workers.commands.memory", "show", "Show one item in full."),
            "history": Verb("workers.commands.memory", "history", "Show what happened to one item, and why."),
            "diff": Verb("workers.commands.memory", "diff", "Show what changed between two versions."),
            "export": Verb("workers.commands.memory", "export", "Write the banks at a version to a file."),
            "fork": Verb("workers.commands.memory", "fork", "Start a new run from the banks at a version."),
            "reembed": Verb(
                "workers.commands.memory_embedding", "reembed", "Begin a run from a bank in another embedder's vectors."
            ),
            "calibrate": Verb(
                "workers.commands.memory_embedding", "calibrate", "Show how a run's thresholds sit in its similarities."
            ),
            "search": Verb(
                "workers.commands.memory_store", "search", "Search a run's bank: by meaning, by words, or both."
            ),
            "rebuild": Verb(
                "workers.commands.memory_store", "rebuild", "Build a run's bank in Weaviate anew from its log."
            ),
            "verify": Verb(
                "workers.commands.memory_store", "verify", "Hold a run's bank in Weaviate against its log, row by row."
            ),
            "gc": Verb("workers.commands.memory_store", "gc", "Remove banks from Weaviate that no run owns."),
        },
    ),
    "log": Noun(
        "Export, import and check logs.",
        {
            "list": Verb("workers.commands.log", "list_logs", "List the logs of the server with their sizes."),
            "export": Verb("workers.commands.log", "export", "Write a run's log to a file or folder."),
            "import": Verb("workers.commands.log", "import_log", "Read an exported log into the server."),
            "verify": Verb("workers.commands.log", "verify", "Decide again and compare every version of the banks."),
            "tail": Verb("workers.commands.log", "tail", "Print the last events, and follow."),
            "schema": Verb("workers.commands.log", "schema", "Print a JSON Schema for each kind of event."),
            "archive": Verb(
                "workers.commands.log_archive", "archive", "Move the beginning of a run's log out of its server."
            ),
            "refold": Verb("workers.commands.log", "refold", "Fold a log under another policy or parameters."),
        },
    ),
    "env": Noun(
        "Install and check benchmark environments.",
        {
            "list": Verb(
                "workers.commands.env", "list_environments", "List the environments and whether they are there."
            ),
            "install": Verb(
                "workers.commands.env", "install", "Install an environment into its own virtual environment."
            ),
            "check": Verb("workers.commands.env", "check", "Run an environment's conformance suite."),
        },
    ),
    "model": Noun(
        "A model without a network, and what any endpoint can do.",
        {
            "list": Verb("workers.commands.model_list", "list_models", "List the configured model of each role."),
            "rehearse": Verb("workers.commands.model", "rehearse", "Serve the rehearsal model on loopback."),
            "probe": Verb(
                "workers.commands.model_probe",
                "probe_command",
                "Ask an endpoint's model what it can do, and show what came back.",
            ),
            "score-gate": Verb(
                "workers.commands.model", "score_gate", "Score a gate's labels against the planted truth."
            ),
        },
    ),
    "ops": Noun(
        "Look after a server: queues, workers, dead letters.",
        {
            "status": Verb("workers.commands.ops", "status", "Show queues, workers, coordinators and dead letters."),
            "pause": Verb("workers.commands.ops", "pause", "Ask for no more jobs of a run until it is resumed."),
            "resume": Verb("workers.commands.ops", "resume", "Go on with a run that was paused or has stopped."),
            "requeue": Verb("workers.commands.ops", "requeue", "Ask afresh for the jobs of a run's open episodes."),
            "drain": Verb("workers.commands.ops", "drain", "Ask workers to finish what runs, then end."),
            "orphans": Verb("workers.commands.ops", "orphans", "Remove queue records that belong to nobody."),
        },
        default="status",
    ),
    "services": Noun(
        "Start and stop the servers that a home has of its own.",
        {
            "status": Verb("workers.commands.services", "status", "Show the home's servers and how they were found."),
            "install": Verb(
                "workers.commands.services",
                "install",
                "Build or fetch a server's program without starting it.",
            ),
            "start": Verb(
                "workers.commands.services", "start", "Start a server that runs until `chime services stop`."
            ),
            "stop": Verb("workers.commands.services", "stop_", "Stop a server of this home."),
        },
        default="status",
    ),
    "coordinator": Verb(
        "workers.commands.coordinator", "coordinator", "Host conductor and projector for the open runs."
    ),
    "worker": Verb("workers.commands.worker", "worker", "Take jobs of one kind: act or diagnose."),
    "config": Noun(
        "Look at the configuration.",
        {"show": Verb("workers.commands.config", "show", "Print every setting, and where it comes from.")},
        default="show",
    ),
}
