"""The place in user code that a traceback is about."""

from holdfast.common import user_code
from holdfast.common.user_code import raised_at

USERS = '  File "/srv/holdfast/app/meters.py", line 12, in process\n    raise ValueError\n'
LIBRARY = '  File "/usr/lib/python3.12/json/decoder.py", line 355, in raw_decode\n    raise\n'
PACKAGE = '  File "/srv/venv/lib/python3.12/site-packages/numpy/core.py", line 7, in dot\n'
OWN = f'  File "{user_code.__file__.replace("common/user_code", "streams/worker")}", line 160, in _run\n'


def test_the_last_line_of_the_user_s_is_named_whatever_it_called() -> None:
    assert raised_at(f"Traceback (most recent call last):\n{OWN}{USERS}{LIBRARY}{PACKAGE}ValueError") == (
        "/srv/holdfast/app/meters.py:12"
    )


def test_of_several_errors_the_last_counts() -> None:
    assert (
        raised_at(f"{USERS}During handling …\n{USERS.replace('12', '30')}")
        == "/srv/holdfast/app/meters.py:30"
    )


def test_without_code_of_the_user_s_the_last_line_is() -> None:
    assert raised_at(OWN + LIBRARY) == "/usr/lib/python3.12/json/decoder.py:355"
    assert raised_at("KeyError: 'x'") == ""
