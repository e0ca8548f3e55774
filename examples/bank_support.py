"""`python -m examples.bank_support`: support that moves money in a real SQLite database.

A tool call is a transaction. If a transfer fails halfway, the library also rolls back the database,
because `Bank` has `snapshot` and `restore`. `accept` checks the typed answer: no customer is told
that a card is blocked when the database says that it is not.
"""

import json
import sqlite3
from itertools import count

from pydantic import BaseModel, Field

from examples.common.command import play
from examples.offline_model import Call, Plan
from weakincentives import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.prompt import OutputRejected, ToolValidationError

__all__ = ["SUPPORT", "Bank", "Support"]

MESSAGES = ["I have lost my card! And please send Bo 900 for the rent."]
SCHEMA = """
create table account (name text, pounds integer, blocked text);
insert into account values ('Ada', 120, null), ('Bo', 5, null);
"""
ADD = "update account set pounds = pounds + ? where name = ? and pounds + ? >= 0"
BLOCK = "update account set blocked = ? where name = ?"


class Bank:
    """The database for one customer's tools; each tool call is a savepoint."""

    def __init__(self, customer: str) -> None:
        self.customer = customer
        self.database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.database.executescript(SCHEMA)
        self._numbers = count()

    def text(self) -> str:
        return "\n".join(self.database.iterdump())

    def snapshot(self) -> str:
        name = f"call_{next(self._numbers)}"
        self.database.execute(f"savepoint {name}")
        return name

    def restore(self, snapshot: str, /) -> None:
        self.database.execute(f"rollback to {snapshot}")

    def release(self, snapshot: str, /) -> None:
        self.database.execute(f"release {snapshot}")


class Transfer(BaseModel):
    to: str = Field(description="The name on the account that receives the money.")
    pounds: int = Field(gt=0, description="The amount.")


class Block(BaseModel):
    reason: str = Field(description="Why, in the customer's words.")


class Support(BaseModel):
    """The answer to the customer."""

    advice: str
    card_blocked: bool
    fraud_risk: int = Field(ge=0, le=10)


def transfer(params: Transfer, *, context: ToolContext) -> ToolResult[None]:
    """Send money from the customer's account to another one."""
    bank = context.resources.get(Bank)
    for name, pounds in ((params.to, params.pounds), (bank.customer, -params.pounds)):
        if not bank.database.execute(ADD, (pounds, name, pounds)).rowcount:
            raise ToolValidationError(f"{name} has no account, or too little in it.")
    return ToolResult(message="Sent.")


def block_card(params: Block, *, context: ToolContext) -> ToolResult[None]:
    """Block the customer's card."""
    bank = context.resources.get(Bank)
    bank.database.execute(BLOCK, (params.reason, bank.customer))
    return ToolResult(message="Blocked.")


def check_answer(output: Support, /, *, context: ToolContext) -> None:
    """Rejects an answer that the database contradicts."""
    bank, query = context.resources.get(Bank), "select blocked from account where name = ?"
    [reason] = bank.database.execute(query, (bank.customer,)).fetchone()
    if output.card_blocked != (reason is not None):
        raise OutputRejected(f"card_blocked is {output.card_blocked}, the database disagrees.")


ROLE = "Help a customer of a bank. Block a lost card. Never send another sum than was asked for."
TOOLS = Tool(name="transfer", handler=transfer), Tool(name="block_card", handler=block_card)
SUPPORT = PromptTemplate[Support](
    ns="examples",
    key="bank-support",
    sections=[MarkdownSection(title="Role", template=ROLE, tools=TOOLS)],
    accept=check_answer,
)


def support() -> Plan:
    """Replaces the model with fixed steps; its first answer is wrong."""
    yield Call(name="transfer", arguments={"to": "Bo", "pounds": 900})
    advice = "Your card is blocked. You have less than 900, so nothing was sent."
    answer = json.dumps({"advice": advice, "card_blocked": True, "fraud_risk": 7})
    yield answer
    yield Call(name="block_card", arguments={"reason": "lost"})
    return answer


if __name__ == "__main__":
    bank = Bank("Ada")
    play(SUPPORT.bind(resources={Bank: bank}), support, MESSAGES, __doc__, state=bank.text)
