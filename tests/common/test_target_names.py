"""What handlers call the targets that an app declares."""

from holdfast.common.target_names import named_targets


def test_a_name_that_two_kinds_have_needs_its_kind() -> None:
    assert named_targets({"stream": ["alerts", "sites"], "task": ["alerts"]}) == {
        "sites": ("stream", "sites"),
        "stream:alerts": ("stream", "alerts"),
        "stream:sites": ("stream", "sites"),
        "task:alerts": ("task", "alerts"),
    }
