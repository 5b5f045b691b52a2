"""A sample of `make test-all WHAT=fuzz`: spoilt folders and archives are refused, or read within bounds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzz import spoilt
from fuzz_folders import KINDS, Template, trained


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    with trained(tmp_path_factory.mktemp("spoilt")) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoilt_folder_is_refused_or_read_within_bounds(kind: str, template: Template) -> None:
    found = spoilt(kind, 8, 0, template)
    assert len(found) > 3
    assert {case: says for case, (says, _) in found.items() if says != "fine"} == {}
