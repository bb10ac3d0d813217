"""Procrastinate while a transaction is held open that looks at all tables at one moment. Prints the tasks a
second of each part as JSON; its workers run already."""

from __future__ import annotations

import json
import sys
import time

import psycopg

from benchmarks.peers.procrastinate_app import Driver
from benchmarks.peers.task_postgres import URL

LOOK_S = 0.02


def main(tasks: int, parts: int) -> None:
    """So many tasks in so many parts."""
    driver = Driver()
    count, rates = tasks // parts, []
    with psycopg.connect(URL) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM procrastinate_jobs")
        for _ in range(parts):
            driver.park(count)
            begin_at = time.monotonic()
            driver.show()
            while driver.has_left():
                time.sleep(LOOK_S)
            rates.append(count / (time.monotonic() - begin_at))
    print(json.dumps(rates))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
