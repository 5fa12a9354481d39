"""Configurations from files and words: everything wrong is named, all at once."""

import pickle

import pytest

from hessalign._errors import ConfigurationError
from hessalign.bench.runs.job import parse_words, read_file


def test_words():
    assert parse_words(["a=1", "b=1e-3", "c=none", "d=true", "e=full", "f="]) == {
        "a": 1, "b": 0.001, "c": None, "d": True, "e": "full", "f": None
    }  # fmt: skip
    with pytest.raises(ConfigurationError) as caught:
        parse_words(["steps", "a=1", "a=2", "b=[1", "c=2020-99-99", "d=!!timestamp z"])
    assert caught.value.problems == [
        "Expected KEY=VALUE, got 'steps'.",
        "Expected each key once, got 'a' twice.",
        "Expected a value after b=, got '[1'.",
        "Expected a value after c=, got '2020-99-99'.",
        "Expected a value after d=, got '!!timestamp z'.",
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a: [1", "Expected YAML in"),
        ("a: 2020-99-99", "Expected YAML in"),
        ("- 1", "Expected `key: value` lines"),
        ("", "got None"),
    ],
)
def test_bad_files(tmp_path, content, text):
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=text):
        read_file(path)
    with pytest.raises(ConfigurationError, match=r"Cannot read .*: Is a directory"):
        read_file(tmp_path)


def test_the_error_survives_the_way_between_processes():
    error = ConfigurationError(["a", "b"])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_file_means_by_its_values_what_words_mean(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("algorithm: hgp\nlearning_rate: 1e-3\nimbalance: none\nnested: {alpha: 1e-2}\n")
    words = parse_words(["algorithm=hgp", "learning_rate=1e-3", "imbalance=none"])
    assert read_file(path) == {**words, "nested": {"alpha": 1e-2}}
