"""The errors that users can mend: the one for an unknown name."""

import pytest

from hessalign._errors import UnknownNameError


def test_says_what_was_found_what_is_valid_and_what_is_nearest():
    error = UnknownNameError("loss", "squarred", ["binary", "squared"])
    assert str(error) == (
        "Unknown loss 'squarred'. Expected one of: 'binary', 'squared'. Did you mean 'squared'?"
    )


def test_ignores_case():
    assert str(UnknownNameError("loss", "BINARY", ["binary"])).endswith("Did you mean 'binary'?")
    assert str(UnknownNameError("dataset", "pacs", ["PACS"])).endswith("Did you mean 'PACS'?")


def test_suggests_nothing_if_nothing_is_near():
    assert str(UnknownNameError("loss", "xyz", ["binary"])).endswith("Expected one of: 'binary'.")


@pytest.mark.parametrize("name", [None, 3, ("a",)])
def test_takes_anything_for_a_name(name):
    assert repr(name) in str(UnknownNameError("loss", name, ["binary", None]))


def test_is_a_value_error():
    with pytest.raises(ValueError, match="Unknown loss"):
        raise UnknownNameError("loss", "x", [])
