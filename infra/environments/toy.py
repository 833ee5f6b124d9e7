"""A small built-in environment: orders to be handled in a warehouse and in a shop, judged by the state they end in.

Standard library only. Every task belongs to a family of orders; a family has one thing a *plan* must hold (which
preparation comes before the first lasting step, and no other) and one thing the *execution* must hold (how one
argument is written). Neither is in the tools' descriptions; both show in what the tools answer, and all orders of a
family share them, so what is learnt from one helps with the next. Lasting steps cannot be undone. Doing nothing
scores 0.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ORDERS_A_FAMILY = 9
SEED = 20260
MAX_STEPS = 30
MAX_ERRORS = 10

_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Orders that are handled alike."""

    name: str
    domain: str
    #: what an order says of itself; {facts} by name
    text: str
    #: the preparation that must come before the first lasting step
    preparation: str
    #: the lasting step whose argument has a convention
    convention: str
    #: the fact as the order says it -> that argument as it must be written
    written: Callable[[str], str]
    #: what the tool says it understood; {value} is what it got
    understood: str


@dataclass(frozen=True, kw_only=True)
class Lasting:
    """A step that cannot be undone. It takes one fact of the order, by the name the order gives it."""

    tool: str
    description: str
    fact: str
    #: what the tool says of its argument
    about: str
    #: 2400 and 2400.0 are the same mass, but '007' is not the quay '7'
    number: bool = False

    def same(self, got: str, wanted: str) -> bool:
        """Whether two ways to write the argument mean the same."""
        try:
            return got == wanted or (self.number and float(got) == float(wanted))
        except ValueError:
            return False


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A place with its preparations and its lasting steps, which come in this order."""

    name: str
    #: tool -> what it says it does
    preparations: dict[str, str]
    lasting: tuple[Lasting, ...]
    #: the facts of an order beside its number and count, from the dice
    facts: Callable[[random.Random, str], dict[str, str]]


def _parcel(dice: random.Random, family: str) -> dict[str, str]:
    mass, dock = f"{dice.randrange(11, 99) / 10:.1f}", str(dice.randrange(1, 10))
    return {"mass": str(dice.randrange(12, 99) * 100) if family == "bulk" else mass, "dock": dock}


def _payment(dice: random.Random, family: str) -> dict[str, str]:
    del family
    return {
        "amount": f"{dice.randrange(505, 9995) / 100:.2f}",
        "day": f"{dice.randrange(1, 29)} {dice.choice(_MONTHS)}",
    }


DOMAINS = {
    "warehouse": Domain(
        name="warehouse",
        preparations={
            "inspect": "Open the goods, look at them and file a record.",
            "chill": "Bring the box and its packs to storage temperature.",
            "declare": "File the papers of an order with the authorities.",
            "reserve": "Block the heavy lift for an order.",
        },
        lasting=(
            Lasting(
                tool="pack",
                description="Pack an order and print its label.",
                fact="mass",
                about="Mass for the label.",
                number=True,
            ),
            Lasting(tool="ship", description="Send a packed order out.", fact="dock", about="Dock it leaves from."),
        ),
        facts=_parcel,
    ),
    "shop": Domain(
        name="shop",
        preparations={
            "verify": "Ask the buyer for a proof of purchase.",
            "freeze": "Stop all further charges of an order.",
            "recall": "Send the customer a return label.",
            "compare": "File the competing offer with its source.",
        },
        lasting=(
            Lasting(
                tool="refund",
                description="Pay money back for an order.",
                fact="amount",
                about="Amount to pay.",
                number=True,
            ),
            Lasting(
                tool="confirm",
                description="Write to the customer and close the order.",
                fact="day",
                about="Day the money arrives.",
            ),
        ),
        facts=_payment,
    ),
}


def _iso(day: str) -> str:
    number, month = day.split(" ")
    return f"2026-{_MONTHS.index(month) + 1:02d}-{int(number):02d}"


def _slashed(day: str) -> str:
    number, month = day.split(" ")
    return f"{int(number):02d}/{_MONTHS.index(month) + 1:02d}/2026"


FAMILIES = (
    Family(
        name="fragile",
        domain="warehouse",
        text="Order {order}: {count} glass lamps (fragile), {mass} kg in all. Send it out from dock {dock}.",
        preparation="inspect",
        convention="pack",
        written=lambda mass: str(round(float(mass) * 1000)),
        understood="label printed: {value} g",
    ),
    Family(
        name="frozen",
        domain="warehouse",
        text="Order {order}: {count} boxes of frozen fish, {mass} kg in all. Send it out from dock {dock}.",
        preparation="chill",
        convention="ship",
        written=lambda dock: f"C-{dock}",
        understood="left from gate {value}; cold gates are named C-1 to C-9",
    ),
    Family(
        name="export",
        domain="warehouse",
        text="Order {order}: {count} sewing machines for export, {mass} kg in all. Send it out from dock {dock}.",
        preparation="declare",
        convention="ship",
        written=lambda dock: f"{int(dock):03d}",
        understood="left from quay '{value}'; quays of the customs yard run from '001' to '009'",
    ),
    Family(
        name="bulk",
        domain="warehouse",
        text="Order {order}: {count} pallets of cement in bulk, {mass} kg in all. Send it out from dock {dock}.",
        preparation="reserve",
        convention="pack",
        written=lambda mass: f"{float(mass) / 1000:.4f}",
        understood="freight label printed: {value} t",
    ),
    Family(
        name="gift",
        domain="shop",
        text="Order {order} was a gift and comes back. Pay {amount} euro back; the money arrives on {day}.",
        preparation="verify",
        convention="refund",
        written=lambda amount: str(round(float(amount) * 100)),
        understood="paid out on the gift card: {value} cents",
    ),
    Family(
        name="subscription",
        domain="shop",
        text="The subscription of order {order} ends. Pay {amount} euro back; the money arrives on {day}.",
        preparation="freeze",
        convention="confirm",
        written=_iso,
        understood="billing calendar entry made for '{value}'; the calendar reads YYYY-MM-DD",
    ),
    Family(
        name="exchange",
        domain="shop",
        text="Order {order} is an exchange for a cheaper one. Pay {amount} euro back; the money arrives on {day}.",
        preparation="recall",
        convention="confirm",
        written=_slashed,
        understood="return slip dated '{value}'; slips are dated DD/MM/2026",
    ),
    Family(
        name="match",
        domain="shop",
        text="Order {order} was cheaper elsewhere (price match). Pay {amount} euro back; the money arrives on {day}.",
        preparation="compare",
        convention="refund",
        written=lambda amount: f"-{amount}",
        understood="price corrected by {value} euro",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Order:
    """One task: a family and the facts of this order."""

    task_id: str
    family: Family
    facts: dict[str, Any]

    @property
    def text(self) -> str:
        """What the user asks."""
        return self.family.text.format(**self.facts) + " Handle the order, then say that it is done."

    def arguments(self, *, naive: bool) -> dict[str, str]:
        """Lasting step -> how its argument is written, by one who knows the convention or one who does not."""
        plain = {step.tool: str(self.facts[step.fact]) for step in DOMAINS[self.family.domain].lasting}
        known = {self.family.convention: self.family.written(plain[self.family.convention])}
        return plain if naive else plain | known


@dataclass(kw_only=True)
class Episode:
    """What has happened to an order so far."""

    order: Order
    max_steps: int
    max_errors: int
    prepared: list[str] = field(default_factory=list)
    #: lasting step -> the argument it was done with
    lasted: dict[str, str] = field(default_factory=dict)
    #: preparations at the time of the first lasting step
    prepared_in_time: tuple[str, ...] = ()
    steps: int = 0
    errors: int = 0
    terminated_by: str | None = None

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run one tool; what it answers.

        Raises:
            ValueError: the tool cannot be run like this; nothing happened.
        """
        domain, family = DOMAINS[self.order.family.domain], self.order.family
        number = str(arguments.get("order", ""))
        if number != self.order.facts["order"]:
            raise ValueError(f"there is no order {number!r}")
        if name == "look_up":
            return json.dumps({**self.order.facts, "kind": family.name, "done": [*self.prepared, *self.lasted]})
        if name in domain.preparations:
            if name in self.prepared:
                raise ValueError(f"{name} was done already")
            self.prepared.append(name)
            return f"{name}: done for order {number}"
        for step in domain.lasting:
            if name == step.tool:
                return self._last(step, arguments)
        raise ValueError(f"there is no tool {name!r}")

    def _last(self, step: Lasting, arguments: dict[str, Any]) -> str:
        family, name = self.order.family, step.tool
        if step.fact not in arguments:
            raise ValueError(f"{name} needs {step.fact}")
        steps = [one.tool for one in DOMAINS[family.domain].lasting]
        missing = [earlier for earlier in steps[: steps.index(name)] if earlier not in self.lasted]
        if missing:
            raise ValueError(f"{name} comes after {missing[0]}")
        if name in self.lasted:
            raise ValueError(f"{name} was done already and cannot be undone")
        if not self.lasted:
            self.prepared_in_time = tuple(self.prepared)
        value = self.lasted[name] = str(arguments[step.fact])
        said = family.understood.format(value=value) if family.convention == name else f"{name}: {value}"
        if name == steps[0] and set(self.prepared) != {family.preparation}:
            said += f"; remark: papers of a {family.name} order not in order, filed were {self.prepared or 'none'}"
        return said

    def succeeded(self) -> bool:
        """Whether the order was prepared as its family needs, no more and in time, and every argument is right."""
        wanted, needed = self.order.arguments(naive=False), {self.order.family.preparation}
        in_time = set(self.prepared_in_time) == needed == set(self.prepared)
        steps = DOMAINS[self.order.family.domain].lasting
        return in_time and all(
            step.tool in self.lasted and step.same(self.lasted[step.tool], wanted[step.tool]) for step in steps
        )


def orders() -> list[Order]:
    """Every task in canonical order: by domain, inside a domain the families take turns."""
    everything = []
    for domain in DOMAINS.values():
        dice = random.Random(f"{SEED}-{domain.name}")  # noqa: S311 - tasks, not secrets
        families = [family for family in FAMILIES if family.domain == domain.name]
        for index in range(ORDERS_A_FAMILY):
            for family in families:
                number = f"{domain.name[0].upper()}-{dice.randrange(1000, 9999)}"
                facts = {"order": number, "count": dice.randrange(2, 9), **domain.facts(dice, family.name)}
                everything.append(Order(task_id=f"{domain.name}-{family.name}-{index}", family=family, facts=facts))
    return everything


#: task id -> order, for every object of the benchmark: nothing changes one
_ORDERS = {order.task_id: order for order in orders()}


def tools(domain: Domain) -> list[dict[str, Any]]:
    """The domain's tools as OpenAI schemas."""

    def tool(name: str, description: str, argument: str = "", about: str = "") -> dict[str, Any]:
        properties = {"order": {"type": "string", "description": "Number of the order."}}
        if argument:
            properties[argument] = {"type": "string", "description": about}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}

    return [
        tool("look_up", "Show what is known about an order."),
        *(tool(name, description) for name, description in domain.preparations.items()),
        *(tool(step.tool, step.description, step.fact, step.about) for step in domain.lasting),
    ]


class Toy:
    """The environment as a benchmark class: plain data in, plain data out."""

    def __init__(self) -> None:
        self._episode: Episode | None = None

    def describe(self) -> dict[str, Any]:
        """See the protocol's `describe`."""
        counts = {name: sum(o.family.domain == name for o in _ORDERS.values()) for name in DOMAINS}
        return {
            "protocol": 1,
            "env": "toy",
            "version": "1",
            "domains": counts,
            "needs": {"user_llm": False, "judge_llm": False, "network": False, "data": False},
            "limits": {"max_steps": MAX_STEPS, "max_errors": MAX_ERRORS},
            "evaluator": "toy-state",
            "evaluator_version": "1",
        }

    def tasks(self, domain: str | None = None, split: str | None = None) -> list[dict[str, Any]]:
        """All tasks, or a domain's; there are no splits of its own."""
        del split
        return [
            {"task_id": order.task_id, "domain": order.family.domain, "tags": [order.family.name]}
            for order in _ORDERS.values()
            if domain in {None, order.family.domain}
        ]

    def reset(
        self, episode_id: str, domain: str, task_id: str, seed: int = 0, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Open the order; nothing here is random, so `seed` has nothing to do."""
        del episode_id, seed
        options = options or {}
        order = _ORDERS[task_id]
        self._episode = Episode(
            order=order,
            max_steps=int(options.get("max_steps", MAX_STEPS)),
            max_errors=int(options.get("max_errors", MAX_ERRORS)),
        )
        return {
            "system": f"You handle the orders of a {domain} with the tools you have. What is done cannot be undone.",
            "messages": [{"role": "user", "content": order.text}],
            "tools": tools(DOMAINS[order.family.domain]),
            "mode": "dialog",
            "done": False,
        }

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        """Run the calls of one assistant message; one without calls ends the episode."""
        episode = self._playing()
        episode.steps += 1
        answers = [self._answer(episode, call) for call in action.get("tool_calls") or []]
        if not answers:
            episode.terminated_by = "agent_stop"
        elif episode.errors > episode.max_errors:
            episode.terminated_by = "too_many_errors"
        elif episode.steps >= episode.max_steps:
            episode.terminated_by = "max_steps"
        return {
            "messages": answers,
            "done": episode.terminated_by is not None,
            "terminated_by": episode.terminated_by,
            "steps": episode.steps,
            "errors": episode.errors,
        }

    def evaluate(self) -> dict[str, Any]:
        """1 when the order ended as it should and the agent stopped by itself, else 0."""
        episode = self._playing()
        success = episode.succeeded() and episode.terminated_by == "agent_stop"
        self._episode = None
        return {
            "reward": float(success),
            "success": success,
            "breakdown": {"closed": len(episode.lasted) == len(DOMAINS[episode.order.family.domain].lasting)},
        }

    def oracle(self, domain: str, task_id: str) -> dict[str, Any]:
        """The right messages, and wrong ones: by execution (`saboteur`), by plan, by both."""
        order = _ORDERS[task_id]
        right, naive = order.arguments(naive=False), order.arguments(naive=True)
        prepared = [order.family.preparation]
        return {
            "text": order.text,
            "turns": [self._script(order, prepared, right)],
            "saboteur": [self._script(order, prepared, naive)],
            "saboteur_plan": [self._script(order, [], right)],
            "saboteur_both": [self._script(order, [], naive)],
            "family": [tool["function"]["name"] for tool in tools(DOMAINS[domain])],
        }

    def _playing(self) -> Episode:
        if self._episode is None:
            raise ValueError("no episode: reset first")
        return self._episode

    @staticmethod
    def _answer(episode: Episode, call: dict[str, Any]) -> dict[str, Any]:
        try:
            arguments = dict(json.loads(call["function"]["arguments"] or "{}"))
            content = episode.call(call["function"]["name"], arguments)
        except (ValueError, TypeError) as problem:
            episode.errors += 1
            content = f"error: {problem}"
        return {"role": "tool", "tool_call_id": call.get("id", ""), "content": content}

    @staticmethod
    def _script(order: Order, prepared: list[str], arguments: dict[str, str]) -> list[dict[str, Any]]:
        number = order.facts["order"]
        calls: list[tuple[str, dict[str, str]]] = [("look_up", {})]
        calls += [(name, {}) for name in prepared]
        calls += [(step.tool, {step.fact: arguments[step.tool]}) for step in DOMAINS[order.family.domain].lasting]
        messages: list[dict[str, Any]] = [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": f"call_{index}",
                        "type": "function",
                        "function": {"name": name, "arguments": json.dumps({"order": number, **rest})},
                    }
                ],
            }
            for index, (name, rest) in enumerate(calls)
        ]
        return [*messages, {"role": "assistant", "content": f"Order {number} is done."}]
