"""Objects that users name by their module, and entry points of installed packages."""

import sys

import pytest

from hessalign._errors import InputError, UnknownNameError
from hessalign._plugins import (
    call_plugin,
    entry_point_names,
    find_plugin,
    is_path,
    load_object,
)

CODE = """
class Net:
    def tiny():
        return "tiny"

def small():
    return "small"

def fails():
    raise KeyError("lost")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module `own_plugin` in the current folder, and a package that offers some of it."""
    (tmp_path / "own_plugin.py").write_text(CODE)
    info = tmp_path / "site" / "own_plugin-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[hessalign.datasets]\nsmall = own_plugin:small\nlost = own_plugin:smal\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    yield tmp_path
    sys.modules.pop("own_plugin", None)


def test_an_object_of_a_module_in_the_current_folder(own):
    assert load_object("own_plugin:small", "data set")() == "small"
    assert load_object("own_plugin:Net.tiny", "data set")() == "tiny"


@pytest.mark.parametrize("name", ["PACS", "a:", ":b", "a b:c", "1:2", "a/b:c", "a:b:c", "..a:b"])
def test_names_that_are_no_paths(name):
    assert not is_path(name)
    with pytest.raises(InputError, match=r"Expected the head as 'package.module:name', got"):
        load_object(name, "head")


def test_a_module_that_is_not_there(own):
    with pytest.raises(InputError, match=r"Cannot find the head 'lab.nets:a': No module named"):
        load_object("lab.nets:a", "head")
    with pytest.raises(InputError, match=r"'own_plugin' is not a package. Expected 'package"):
        load_object("own_plugin.nets:a", "head")


def test_the_nearest_name_is_proposed(own):
    with pytest.raises(UnknownNameError, match=r"head in own_plugin 'smal'.*Did you mean 'small'"):
        load_object("own_plugin:smal", "head")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import a_package_nobody_has", r"ModuleNotFoundError: .*own_plugin.py, line 1\)"),
        ("\n\n{}['a']", r"KeyError: 'a' \(.*own_plugin.py, line 3\)"),
        ("def make(:", r"SyntaxError: .*own_plugin.py, line 1"),
    ],
)
def test_a_module_that_cannot_be_imported(own, code, message):
    (own / "own_plugin.py").write_text(code)
    with pytest.raises(InputError, match=f"The head 'own_plugin:f' cannot be loaded; .*{message}"):
        load_object("own_plugin:f", "head")


def test_errors_of_what_is_called_are_named_with_their_place(own):
    fails = load_object("own_plugin:fails", "head")
    message = r"The head 'own_plugin:fails' cannot be made; .*KeyError: 'lost' \(.*py, line 10\)"
    with pytest.raises(InputError, match=message):
        call_plugin("own_plugin:fails", "head", fails)
    with pytest.raises(InputError, match="mend it"):
        call_plugin("a:b", "head", _refuse)


def _refuse():
    raise InputError("mend it")


def test_entry_points(own):
    assert entry_point_names("hessalign.datasets") == ["lost", "small"]
    assert find_plugin("hessalign.datasets", "small", "data set")() == "small"
    assert find_plugin("hessalign.datasets", "other", "data set") is None
    with pytest.raises(UnknownNameError, match=r"dataset in own_plugin 'smal'.*'small'"):
        find_plugin("hessalign.datasets", "lost", "data set")


def test_two_packages_that_offer_different_things_under_a_name(own):
    info = own / "site" / "other_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hessalign.datasets]\nsmall = math:pi\n")
    with pytest.raises(InputError, match=r"found math:pi, own_plugin:small. Name the one"):
        find_plugin("hessalign.datasets", "small", "data set")
