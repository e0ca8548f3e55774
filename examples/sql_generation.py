"""`python -m examples.sql_generation`: a question becomes SQL that the database can execute.

`accept` asks SQLite to explain the query before the answer is accepted, in a transaction over the
tools' own resources. If SQLite reports an error, the model receives it and answers again. The
connection is read-only whatever the query says, and it stops queries that take too long.
"""

import json
import sqlite3
from dataclasses import dataclass, field
from functools import partial

from examples.common.command import play
from examples.offline_model import Plan
from weakincentives import MarkdownSection, PromptTemplate, ToolContext
from weakincentives.prompt import OutputRejected
from weakincentives.resources import Binding, ResourceRegistry

__all__ = ["QUERIES", "Query", "open_shop", "table"]

MESSAGES = ["Which customers have spent more than 100?"]
TABLES = """
create table customer (id integer primary key, name text);
create table orders (customer_id integer references customer, pounds integer, day text);
"""
ROWS = """
insert into customer values (1, 'Ada'), (2, 'Bo'), (3, 'Cy');
insert into orders values (1, 80, '2026-03-01'), (1, 45, '2026-03-09'), (2, 99, '2026-03-02');
"""
READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


@dataclass(frozen=True)
class Query:
    """The answer: a query, and the meaning of its rows."""

    sql: str = field(metadata={"description": "One SELECT in the dialect of SQLite."})
    meaning: str = field(metadata={"description": "What a row says, in a few words."})


def allow_reading(action: int, *_names: str | None) -> int:
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def open_shop() -> sqlite3.Connection:
    """Opens the database read-only, with limits on a query's time and on the size of a value."""
    shop = sqlite3.connect(":memory:", check_same_thread=False)
    shop.executescript(TABLES + ROWS)
    shop.set_authorizer(allow_reading)
    shop.set_progress_handler(lambda: 1, 10_000_000)  # a query stops after this many instructions
    shop.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
    return shop


def explain(output: Query, /, *, context: ToolContext) -> None:
    """Rejects a query that the database cannot explain."""
    try:
        context.resources.get(sqlite3.Connection).execute(f"explain {output.sql}")
    except (sqlite3.Error, ValueError) as error:
        raise OutputRejected(f"SQLite says: {error}") from error


QUERIES = PromptTemplate[Query](
    ns="examples",
    key="sql-generation",
    sections=[
        MarkdownSection(
            title="Task",
            template="Answer each question with a query. It is executed, and the user sees its "
            "rows: give them telling columns, and order them.",
        ),
        MarkdownSection(title="Tables", template=TABLES, literal=True),
    ],
    resources=ResourceRegistry.of(Binding(sqlite3.Connection, lambda _: open_shop())),
    accept=explain,
)


def table(shop: sqlite3.Connection, query: Query) -> str:
    """Returns the query's first rows as lines, or the error that stopped it."""
    try:
        rows = shop.execute(query.sql)
        names = [column[0] for column in rows.description]
        lines = [names, *rows.fetchmany(20)]
    except sqlite3.Error as error:
        return f"SQLite says: {error}"
    return "\n".join([" | ".join(map(str, line)) for line in lines])


def write() -> Plan:
    """Replaces the model with fixed answers; the first one names a column that does not exist."""
    sql = (
        "select name, sum({}) as spent from customer join orders on customer_id = id "
        "group by id having spent > 100 order by spent desc"
    )
    meaning = "A customer, and what all orders cost together."
    yield json.dumps({"sql": sql.format("price"), "meaning": meaning})
    return json.dumps({"sql": sql.format("pounds"), "meaning": meaning})


if __name__ == "__main__":
    play(QUERIES.bind(), write, MESSAGES, __doc__, show=partial(table, open_shop()))
