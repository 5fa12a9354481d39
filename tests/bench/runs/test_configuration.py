"""Configurations from files and words: everything wrong is named, all at once."""

import pickle

import pytest

from hessalign.bench.runs.options import (
    ConfigurationError,
    make_configuration,
    parse_words,
    read_file,
)


def problems(entries):
    with pytest.raises(ConfigurationError) as caught:
        make_configuration(entries)
    return caught.value.problems


def test_all_problems_at_once():
    found = problems(
        {
            "algorithm": "hutchinson",
            "probs": 3,
            "steps": 0,
            "width": "wide",
            "alpha": -1,
            "imbalance": "papr",
            "seed": True,
        }
    )
    assert len(found) == 6
    for text in (
        "Unknown key 'probs'. Did you mean 'probes'?",
        "Expected steps of 1 or more, got 0.",
        "Expected width as a whole number, got 'wide'.",
        "Expected alpha as a finite number of 0 or more, got -1.0.",
        "Did you mean 'paper'?",
        "Expected seed as a whole number, got True.",
    ):
        assert any(text in problem for problem in found), text


def test_an_unknown_algorithm_does_not_hide_the_rest():
    found = problems({"algorithm": "fisher", "steps": -1})
    assert "Did you mean 'fishr'?" in found[0]
    assert "Expected steps of 1 or more, got -1." in found[1]


def test_contradictions_are_found_when_each_value_is_fine():
    (problem,) = problems({"algorithm": "hgp", "alpha": 0, "beta": 0})
    assert "the weights of both terms are 0" in problem
    assert "use the algorithm 'erm'" in problem


def test_options_may_be_nested_or_beside_the_rest():
    nested = make_configuration({"algorithm": "hutchinson", "options": {"probes": 5}})
    beside = make_configuration({"algorithm": "hutchinson", "probes": 5})
    assert nested == beside
    (problem,) = problems({"options": 3})
    assert "Expected options as a mapping" in problem
    (problem,) = problems({"algorithm": "erm", "options": {"probes": 3}})
    assert "'erm' has: no options" in problem


def test_the_experiment_schedules_the_penalty():
    """An option that would have no effect is refused, not ignored."""
    (problem,) = problems({"algorithm": "irm", "anneal_steps": 5})
    assert "Expected no option 'anneal_steps': the experiment's own 'jump' decides" in problem
    (problem,) = problems({"algorithm": "irm", "options": {"penalty_weight": 5.0}})
    assert "'penalty_weight' decides" in problem
    assert make_configuration({"algorithm": "irm", "penalty_weight": 5}).penalty_weight == 5.0


def test_whole_numbers_serve_as_fractions_but_not_the_reverse():
    config = make_configuration({"algorithm": "hgp", "learning_rate": 1, "beta": 2})
    assert isinstance(config.learning_rate, float)
    assert isinstance(config.options["beta"], float)
    assert "whole number" in problems({"steps": 2.0})[0]


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
    path.write_text(
        "algorithm: hgp\nlearning_rate: 1e-3\nimbalance: none\noptions: {alpha: 1e-2}\n"
    )
    words = parse_words(["algorithm=hgp", "learning_rate=1e-3", "imbalance=none", "alpha=1e-2"])
    config = make_configuration(read_file(path))
    assert config == make_configuration(words)
    assert (config.learning_rate, config.options) == (1e-3, {"alpha": 1e-2})


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"algorithm": ["hgp"]}, r"Unknown algorithm \['hgp'\]"),
        ({"l2": float("nan")}, "Expected l2 of 0 or more, got nan"),
        ({"penalty_weight": float("inf")}, "Expected penalty_weight of 0 or more, got inf"),
        ({"learning_rate": float("inf")}, "Expected a positive learning_rate, got inf"),
        ({"train_images": -5}, "Expected train_images of 1 or more, got -5"),
    ],
)
def test_values_that_cannot_be_trained_with(entries, text):
    with pytest.raises(ConfigurationError, match=text):
        make_configuration(entries)
