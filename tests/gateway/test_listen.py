"""The sockets of a gateway."""

import pytest

from holdfast.errors import ConfigError
from holdfast.gateway.listen import listen


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_can_t_be_one_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=f"can.t listen on 127.0.0.1:{port}: "):
        listen("127.0.0.1", port)
