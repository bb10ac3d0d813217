import pytest

from holdfast.common.storable import storable


@pytest.mark.parametrize(
    "text,stored",
    [("", ""), ("Grüße, 世界 🚪\n\0", "Grüße, 世界 🚪\n\0"), ("caf\udce9.csv", "caf\\udce9.csv")],
)
def test_only_what_utf_8_has_no_form_for_is_escaped(text: str, stored: str) -> None:
    assert storable(text) == stored
