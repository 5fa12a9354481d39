"""Configurations from files and words: everything wrong is named, all at once."""

import pickle
from dataclasses import dataclass
from typing import Literal

import pytest

from hessalign._errors import ConfigurationError, InputError
from hessalign.bench.runs.options import make_options, parse_words, read_file


@dataclass(frozen=True)
class Options:
    steps: int = 3
    rate: float = 0.5
    name: str | None = None
    kind: Literal["full", "diagonal"] = "full"
    shared: bool = False

    def __post_init__(self):
        if self.steps < 1:
            raise InputError(f"Expected steps of 1 or more, got {self.steps}.")
        if self.steps == 7 and self.shared:
            raise InputError("Expected other steps than 7 if they are shared.")


def make(**values):
    return make_options(Options(), values, "the example")


def test_values_have_the_types_that_are_declared():
    made = make(steps=4, rate=1, name="x", kind="diagonal", shared=True)
    assert made == Options(4, 1.0, "x", "diagonal", True)
    assert isinstance(made.rate, float)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"steps": 2.0}, r"Expected steps as a whole number, got 2\.0"),
        ({"steps": True}, "Expected steps as a whole number, got True"),
        ({"rate": "fast"}, "Expected rate as a number, got 'fast'"),
        ({"name": 3}, "Expected name as a name or none, got 3"),
        ({"kind": 3}, "Expected kind as 'full' or 'diagonal', got 3"),
        ({"shared": 1}, "Expected shared as true or false, got 1"),
        ({"step": 1}, r"Unknown option of the example 'step'.* Did you mean 'steps'"),
        ({"steps": 0}, "Expected steps of 1 or more, got 0"),
        ({"steps": 7, "shared": True}, "other steps than 7 if they are shared"),
    ],
)
def test_what_is_wrong_is_named(values, text):
    with pytest.raises(InputError, match=text):
        make(**values)


def test_all_problems_at_once():
    with pytest.raises(ConfigurationError) as caught:
        make(steps=0, rate="fast", nam="x")
    assert len(caught.value.problems) == 3


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
