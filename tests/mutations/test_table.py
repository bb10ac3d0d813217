"""The table of mutations goes with the code, though they are tried only now and then."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


def test_each_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(each.name for each in MUTATIONS).items() if count > 1] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_the_code_and_the_tests_that_it_names_are_there(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, "what it replaces has changed"
    assert mutation.old != mutation.new
    for test in mutation.tests:
        file, *names = test.split("::")  # what a class inherits stands elsewhere
        text = (ROOT / file).read_text()
        assert not names or re.search(rf"^(async def|def|class) {names[0]}\b", text, re.MULTILINE), test
