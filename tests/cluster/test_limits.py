"""A node's limits: those that are settings stand in the config, and nowhere else."""

from typing import get_type_hints

import msgspec

from holdfast.cluster.limits import FORWARD_BYTES_MAX, Limits
from holdfast.common.protocol import FORWARD_OVERHEAD_BYTES
from holdfast.config.settings import Config
from simulator.limits import limits_with


def test_a_setting_has_its_type_and_default_in_the_config_alone() -> None:
    types = get_type_hints(Limits)
    for field in msgspec.structs.fields(Limits):
        setting = Config.model_fields.get(field.name)
        assert field.required == (setting is not None), field.name
        if setting is not None:
            assert setting.annotation is types[field.name], field.name


def test_limits_are_those_of_the_config() -> None:
    config = Config(slots=3, streams_per_slot_max=7, receive_wait_s=2.0)
    limits = Limits.of(config)
    assert (limits.slots, limits.streams_max, limits.receive_wait_s) == (3, 21, 2.0)
    assert limits.renew_s == config.renew_s


def test_a_forward_fits_what_a_node_takes() -> None:
    least = FORWARD_OVERHEAD_BYTES + 1
    assert limits_with(max_peer_bytes=least).forward_bytes_max == 1
    assert limits_with().forward_bytes_max == FORWARD_BYTES_MAX
