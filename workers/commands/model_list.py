"""`chime model list`: which model each role is asked of."""

from msgspec import Struct
from msgspec.structs import asdict

from runtime.ports import Role
from runtime.settings import Price
from workers.configuration import ROLES
from workers.invocation import Invocation, chime_command
from workers.layers import shown
from workers.tables import Column


class RoleModel(Struct, frozen=True, kw_only=True):
    """One role as the configuration has it."""

    role: Role
    #: "" = not configured
    model: str
    #: without a password; "" = not configured
    base_url: str
    #: name of the variable that holds the key
    api_key_env: str
    #: whether that variable holds something
    key_set: bool
    temperature: float
    #: cap of one answer, tokens
    max_tokens: int
    #: None = unpriced
    price: Price | None


@chime_command("list", short_help="List the configured model of each role.")
def list_models(invocation: Invocation) -> None:
    """List what planner, executor and gate are asked with, as a run that starts now would ask. Nobody is asked."""
    rows = [_row(invocation, role) for role in ROLES]
    output = invocation.output
    output.data(rows)
    output.table(
        [Column("role"), Column("model"), Column("endpoint"), Column("key"), Column("temperature", "right"),
         Column("max tokens", "right"), Column("price")],
        [_cells(row) for row in rows],
    )  # fmt: skip
    if not all(row.model and row.base_url for row in rows):
        output.note(
            "to configure one: --model and --base-url of `chime run start`, or [models] in chime.toml (`chime init`); "
            "`chime model rehearse` serves one without a network"
        )


def _row(invocation: Invocation, role: Role) -> RoleModel:
    configuration = invocation.configuration
    given = configuration.role(role)
    return RoleModel(
        role=role,
        model=given["model"],
        base_url=str(shown("base_url", given["base_url"])),
        api_key_env=given["api_key_env"],
        key_set=bool(invocation.environment.get(given["api_key_env"])),
        temperature=given["temperature"],
        max_tokens=given["max_tokens"],
        price=configuration.prices.get(given["model"]),
    )


def _cells(row: RoleModel) -> list[object]:
    key = f"{row.api_key_env} ({'set' if row.key_set else 'not set'})" if row.api_key_env else "none"
    return [
        row.role, row.model or "-", row.base_url or "-", key, f"{row.temperature:g}", f"{row.max_tokens:,}",
        _priced(row.price) if row.model else "-",
    ]  # fmt: skip


def _priced(price: Price | None) -> str:
    """What a million tokens cost, by kind."""
    if price is None:
        return "unpriced"
    return ", ".join(f"{kind} {value:g}" for kind, value in asdict(price).items() if isinstance(value, int | float))
