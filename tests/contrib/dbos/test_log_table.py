"""The table of logs on real databases: its creation, its transactions and its failures."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from support.durable_processes import (
    LOG,
    Extra,
    NewRunStore,
    Postgres,
    RunStore,
    check,
    dbos,
    make_books,
    read_books,
    read_log,
    run_in_process,
    sqlalchemy,
    start_process,
    until,
    wait_for_process,
    with_runs,
)
from support.durable_runs import STORY, Job, calls
from weakincentives.contrib.durable import DurableRuns
from weakincentives.contrib.durable.sql_log_table import SqlLogTable
from weakincentives.evaluation.stored_log import NewAttempt, Row, StoppedAttempt


def listen(engine: Extra, name: str, tell: Callable[..., None]) -> None:
    sqlalchemy.event.listen(engine, name, tell)


def test_processes_that_start_together_create_the_tables_once(new_store: NewRunStore) -> None:
    store = new_store()

    def begin() -> None:
        store.facts.add("ready")
        until(lambda: store.facts.read().count(["ready"]) == 8)
        table = SqlLogTable()
        table.open(store.url)
        store.facts.add("began", table.begin("run", "v").number)

    pids = [start_process(begin, store.log) for _ in range(8)]
    assert [wait_for_process(pid) for pid in pids] == [0] * 8, store.log.read_text()
    numbers = [int(words[1]) for words in store.facts.read() if words[0] == "began"]
    assert sorted(numbers) == list(range(1, 9))


def test_new_attempt_sees_rows_that_the_older_one_is_committing(postgres: Postgres) -> None:
    """This holds even if the application has chosen another isolation level for its database."""
    url = postgres.database()
    engine = sqlalchemy.create_engine(url, isolation_level="REPEATABLE READ")
    table = SqlLogTable(dbos.SQLAlchemyDatasource.create(url, engine=engine))
    older, attempts = table.begin("run", "v"), list[NewAttempt]()
    newer = Thread(target=lambda: attempts.append(table.begin("run", "v")))

    def commit(_c: object) -> None:
        if not newer.ident:
            newer.start()
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            until(lambda: looking.execute(sqlalchemy.text(waiting)).first())
            assert attempts == []

    listen(engine, "commit", commit)
    row = Row("", 0, "line")
    other = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with other.connect() as looking:
        table.append("run", older.number, [row], first=True)
    newer.join()
    assert [(attempt.number, attempt.rows) for attempt in attempts] == [(2, [row])]
    with pytest.raises(StoppedAttempt, match="continues in a newer attempt"):
        table.append("run", older.number, [row], first=False)
    engine.dispose()
    other.dispose()


def test_postgresql_url_without_a_driver_uses_psycopg(postgres: Postgres, tmp_path: Path) -> None:
    store = RunStore(postgres.database().replace("+psycopg", ""), tmp_path)
    run_in_process(store, store.work())
    assert check(replace(store, url=store.url.replace("postgresql", "postgresql+psycopg"))) == 0


def test_missing_log_table_ends_the_run_immediately(new_store: NewRunStore) -> None:
    store = new_store()

    def work() -> None:
        def drop(place: str) -> None:
            if place == "in tool":
                with runs.table.engine.begin() as connection:
                    connection.execute(sqlalchemy.text(f"DROP TABLE {LOG}"))

        runs = replace(store, hook=drop).open()
        store.launch()
        run = runs.start("agent", Job("it"), run_id="run")
        with pytest.raises(sqlalchemy.exc.DBAPIError, match=LOG):
            run.result()
        assert run.status == "ended"

    started = time.monotonic()
    run_in_process(store, work)
    assert time.monotonic() - started < 20
    assert [words[1] for words in store.facts.read() if words[0] == "tool"] == ["note"]


def test_entry_is_stored_once_if_the_connection_breaks_after_its_commit(
    postgres: Postgres, tmp_path: Path
) -> None:
    """The connection breaks after every second COMMIT."""
    url = postgres.database()
    make_books(url)
    story = [*[calls(("book", f'{{"a": {a}}}'), ("note", "{}")) for a in range(0, 8, 2)], STORY[-1]]
    store = RunStore(url, tmp_path, books=url, story=story)

    def use(runs: DurableRuns) -> None:
        storing = list[Extra]()

        def before(connection: Extra, _cursor: object, statement: str, *_rest: object) -> None:
            if f"INSERT INTO {LOG}" in statement:
                storing.append(connection)

        def commit(connection: Extra) -> None:
            if storing[-1:] == [connection] and len(storing) % 2:
                connection.connection.dbapi_connection.commit()
                connection.connection.dbapi_connection.close()

        listen(runs.table.engine, "before_cursor_execute", before)
        listen(runs.table.engine, "commit", commit)
        store.keep(runs.start("agent", Job("run"), run_id="run"))

    with_runs(store, use)
    assert store.result()["text"] == STORY[-1].text
    assert read_books(url) == [(f"run:{turn}/c0", 2 * turn - 2) for turn in range(1, 5)]
    effects = [words for words in store.facts.read() if words[0] == "tool"]
    assert len(effects) == 8
    assert [row.position for row, _ in read_log(store)] == list(range(1 + 5 + 8))


def test_transactional_call_can_outlast_the_lock_timeout_of_a_frozen_worker(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.database()
    make_books(url)
    story = [calls(("order", '{"a": 200}')), STORY[-1]]

    def wait(place: str) -> None:
        if place == "in order":
            time.sleep(6)

    store = RunStore(url, tmp_path, books=url, story=story, hook=wait)
    run_in_process(store, store.work())
    assert read_books(url) == [("run:1/c0", 200), ("run:1/c0/1:2/c1", 200)]
    assert [words[1] for words in store.facts.read() if words[0] == "tool"].count("order") == 1


@pytest.mark.parametrize("name", ["book", "order"])
def test_transactional_call_is_retried_if_its_connection_breaks(
    postgres: Postgres, tmp_path: Path, name: str
) -> None:
    url = postgres.database()
    make_books(url)
    store = RunStore(url, tmp_path, books=url, story=[calls((name, '{"a": 200}')), STORY[-1]])

    def use(runs: DurableRuns) -> None:
        broken = list[Extra]()

        def before(connection: Extra, _cursor: object, statement: str, *_rest: object) -> None:
            if "INSERT INTO books" in statement and len(broken) < 2:
                broken.append(connection)
                connection.connection.dbapi_connection.close()

        listen(runs.table.engine, "before_cursor_execute", before)
        store.keep(runs.start("agent", Job("run"), run_id="run"))
        assert len(broken) == 2

    with_runs(store, use)
    assert store.result()["text"] == STORY[-1].text
    keys = {"book": ["run:1/c0"], "order": ["run:1/c0", "run:1/c0/1:2/c1"]}[name]
    assert read_books(url) == [(key, 200) for key in keys]
