"""Tests of nodes run in threads, and Python 3.11 parses in one of them at a time."""

import ast
import gc
import inspect
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

SOURCE = inspect.getsource(ast)


def test_a_thread_may_parse_while_another_one_that_parses_collects_garbage() -> None:
    """Python 3.11 would raise SystemError: AST constructor recursion depth mismatch."""
    with ThreadPoolExecutor(1) as pool:
        others = list[Future[None]]()

        def collecting(*_: Any) -> None:
            if not others:
                others.append(pool.submit(parse_deeper, 30))
                begun.wait(1.0)
                done.wait(0.3)

        def parse_deeper(depth: int) -> None:
            begun.set()
            if depth:
                parse_deeper(depth - 1)
            else:
                ast.parse(SOURCE)
                done.set()

        begun, done = Event(), Event()
        gc.callbacks.append(collecting)
        threshold = gc.get_threshold()
        gc.set_threshold(100)
        try:
            ast.parse(SOURCE)
        finally:
            gc.callbacks.remove(collecting)
            gc.set_threshold(*threshold)
        others[0].result(10.0)
