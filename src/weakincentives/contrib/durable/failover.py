"""Returns runs that nobody runs to their queue in PostgreSQL.

A worker is alive while it holds the lock of its `executor_id`; the runs of dead and frozen workers
go back. So do a worker's own runs that it has claimed without hearing of it.
"""

import logging
from collections import Counter
from contextlib import suppress
from importlib import import_module
from threading import Event, Thread
from typing import Self

from .database import Extra, dbos
from .executor_lock import AdvisoryLocks, lock_key, locked_by_failover, release
from .waiting import WORKFLOW

__all__ = ["WorkerFailover"]

_log = logging.getLogger(__name__)

# Checks in a row without a lock: a worker that only lost its connection has it again by then.
_CHECKS = 3


class WorkerFailover:
    """Marks this worker as alive while entered, and recovers the runs of workers that are not.

    Enter it before `DBOS.launch()`. It checks the other workers every `every` seconds. The server
    takes the lock from a worker that is silent for `silent` seconds, which must be more than DBOS's
    `sys_db_idle_transaction_timeout_sec`, so that the worker locks no rows by then either. Raises
    `RuntimeError` when another worker of this id is alive.
    """

    def __init__(
        self, database_url: str, executor_id: str, *, every: float = 1, silent: float = 10
    ) -> None:
        self._key, self._executor_id = lock_key(database_url, executor_id), executor_id
        self._every = every
        self._absent: Counter[str] = Counter()  # checks without a lock, by executor id
        self._lost: Counter[str] = Counter()  # checks of own runs that do not run, by run id
        self._over = Event()
        self._thread = Thread(target=self._watch, name="failover", daemon=True)
        self._locks = AdvisoryLocks(database_url, silent=silent)
        release(database_url, executor_id)  # the lock of `config`, which a frozen worker would keep
        if not self._locks.lock(executor_id, _CHECKS * every):  # a peer that checks has it briefly
            self._locks.close()
            raise RuntimeError(
                f"another worker of executor_id {executor_id!r} is alive; give each an id of its "
                "own"
            )
        locked_by_failover.add(self._key)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        locked_by_failover.discard(self._key)
        self._locks.close()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._check_workers()
            # the database is away, or the launch is not over: the next check comes
            except Exception:
                _log.warning(
                    "Checking other workers failed",
                    extra={"executor_id": self._executor_id},
                    exc_info=True,
                )
                with suppress(Exception):  # at once, where its connection broke
                    self._locks.lock(self._executor_id)

    def _check_workers(self) -> None:
        self._locks.lock(self._executor_id)  # a peer may just have had it
        engine = dbos().DBOS
        version = engine.application_version  # runs of other versions wait for their own workers
        pending = engine.list_workflows(
            status="PENDING", app_version=version, load_input=False, load_output=False
        )
        absent: Counter[str] = Counter()
        for other in {run.executor_id for run in pending} - {self._executor_id}:
            if not self._locks.lock(other):
                continue
            try:
                absent[other] = self._absent[other] + 1
                if absent[other] >= _CHECKS:
                    _log.warning("Taking over runs", extra={"executor_id": other})
                    engine._recover_pending_workflows([other])  # noqa: SLF001 - the public way forgets tries and deadline
            finally:
                self._locks.unlock(other)
        self._absent = absent
        self._recover_lost([run for run in pending if run.executor_id == self._executor_id])

    def _recover_lost(self, own: list[Extra]) -> None:
        """Returns to their queue the runs that this worker has claimed and does not run.

        DBOS claims queued runs and starts them when the server confirms it. If the connection
        breaks in between, it forgets them until its next launch.
        """
        instance = import_module("dbos._dbos")._get_dbos_instance()  # noqa: SLF001 - no public way
        if not instance._executor._work_queue.empty():  # noqa: SLF001 - some wait for a thread
            return
        active = {*instance._active_workflows_set.activeList()}  # noqa: SLF001 - as above
        self._lost = Counter(
            {
                run.workflow_id: self._lost[run.workflow_id] + 1
                for run in own
                if run.name == WORKFLOW and run.queue_name and run.workflow_id not in active
            }
        )
        queue = dbos()._utils.INTERNAL_QUEUE_NAME  # noqa: SLF001 - as above
        for run_id in [run_id for run_id, checks in self._lost.items() if checks >= _CHECKS]:
            _log.warning("Taking up a lost run", extra={"run_id": run_id})
            instance._sys_db.reenqueue_for_recovery(run_id, [self._executor_id], queue)  # noqa: SLF001 - as above
            del self._lost[run_id]  # the next claim is another one
