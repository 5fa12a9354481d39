"""Algorithms that users bring: by their module, or by an installed package."""

import sys

import pytest

from hessalign._errors import InputError, UnknownNameError
from hessalign.bench.algorithms import (
    ALGORITHMS,
    Power,
    algorithm_names,
    find_algorithm,
    make_config,
)
from hessalign.bench.algorithms.search import run_hyper_parameters, search_space
from hessalign.cli import main
from hessalign.testing import check_algorithm

CODE = """
from dataclasses import dataclass
from typing import Literal
from hessalign.bench.algorithms import (
    AbstractObjective, AlgorithmInfo, ObjectiveTerms, PenaltySchedule, Power
)

@dataclass(frozen=True)
class Config:
    strength: float = 0.5
    steps_before: int = 3
    how: Literal["mean", "sum"] = "mean"
    cap: float | None = None

    def __post_init__(self):
        if self.strength < 0:
            from hessalign._errors import InputError
            raise InputError(f"Expected strength of 0 or more, got {self.strength}.")

    @property
    def schedule(self):
        return PenaltySchedule(0.0, self.strength, self.steps_before)

class Shrink(AbstractObjective):
    config = Config()
    search = {"strength": Power(10, -1, 1), "how": ("shrink_how", Power(2, 0, 1))}

    def terms(self, step):
        return ObjectiveTerms(step.statistics.risk.mean(), step.z.square().mean())

SHRINK = AlgorithmInfo(
    "any", "Shrink!", Shrink, "features", "us", config=Config(strength=2.0), search={}
)

class Plain(AbstractObjective):
    def terms(self, step):
        return ObjectiveTerms(step.statistics.risk.mean())

class Half(AbstractObjective):
    pass

class Loose(Plain):
    config = {"strength": 1}

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module `own_method` in the current folder, and a package that offers some of it."""
    (tmp_path / "own_method.py").write_text(CODE)
    info = tmp_path / "site" / "own_method-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-method\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[hessalign.algorithms]\nshrink = own_method:Shrink\nerm = own_method:Plain\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    yield tmp_path
    sys.modules.pop("own_method", None)


@pytest.mark.parametrize("name", ["own_method:Shrink", "shrink"])
def test_a_class_is_found_under_the_name_by_which_it_is_recorded(own, name):
    info = find_algorithm(name)
    assert (info.name, info.recorded, info.title) == (name, name, "Shrink")
    assert info.config.strength == 0.5
    assert not info.compares_domains
    assert find_algorithm(info.recorded).make is info.make


def test_a_row_may_stand_for_a_class(own):
    info = find_algorithm("own_method:SHRINK")
    assert (info.name, info.recorded, info.title) == ("own_method:SHRINK",) * 2 + ("Shrink!",)
    assert (info.config.strength, info.search, info.compares_domains) == (2.0, {}, True)


def test_names_of_the_package_come_first(own):
    assert find_algorithm("erm") is ALGORITHMS["erm"]
    assert algorithm_names() == [*ALGORITHMS, "shrink"]


def test_options_are_checked_by_their_hints_and_by_the_class(own):
    assert make_config("shrink", {"cap": 3, "how": "sum"}).cap == 3
    for options, message in (
        ({"strength": "big"}, "Expected strength as a finite number, got 'big', a str"),
        ({"strength": float("nan")}, "Expected strength as a finite number, got nan"),
        ({"steps_before": 1.5}, "Expected steps_before as a whole number, got 1.5"),
        ({"how": "max"}, "Unknown how 'max'. Expected one of: 'mean', 'sum'"),
        ({"cap": True}, "Expected cap as a finite number, got True, a bool"),
        ({"strength": -1.0}, "Expected strength of 0 or more, got -1.0"),
        ({"strenght": 1.0}, "Unknown option of algorithm 'shrink' 'strenght'.*mean 'strength'"),
    ):
        with pytest.raises(InputError, match=message):
            make_config("shrink", options)


def test_options_are_drawn_from_the_search_space_of_the_class(own):
    info = find_algorithm("shrink")
    space = search_space(info, "features", "domainbed-2022")
    assert space["strength"] == ("strength", Power(10, -1, 1))
    assert space["how"] == ("shrink_how", Power(2, 0, 1))
    defaults = run_hyper_parameters(info, "features", 0, 0)
    assert defaults.values["strength"] == defaults.options["strength"] == 0.5
    drawn = run_hyper_parameters(info, "features", 1, 0, overrides={"steps_before": 7})
    assert 0.1 <= drawn.options["strength"] <= 10
    assert drawn.values["strength"] == drawn.options["strength"]
    assert drawn.values["steps_before"] == drawn.options["steps_before"] == 7


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shrnk", "Unknown algorithm 'shrnk'.*'shrink'. Did you mean 'shrink'"),
        ("own_method:Shrnk", "Unknown algorithm in own_method 'Shrnk'.*Did you mean 'Shrink'"),
        ("nowhere:Shrink", "Cannot find the algorithm 'nowhere:Shrink'"),
        ("own_method:number", "Expected an algorithm as 'own_method:number'.*got 3. Use a subclas"),
        ("own_method:Half", "Expected a complete class.*got Half, which lacks terms"),
        ("own_method:Loose", "Loose.config as an instance of a frozen dataclass.*got {'strength'"),
    ],
)
def test_what_is_no_algorithm_is_refused(own, name, message):
    with pytest.raises(InputError, match=message):
        find_algorithm(name)


def test_an_unknown_name_is_an_unknown_name(own):
    with pytest.raises(UnknownNameError):
        find_algorithm("shrnk")


def test_the_checks_take_a_name(own):
    check_algorithm("own_method:Plain")
    with pytest.raises(AssertionError, match="drawn options are accepted: The search space gave"):
        check_algorithm("shrink")  # "how" cannot be drawn from numbers


def test_the_listing_has_those_of_others(own, capsys):
    assert main(["algorithms"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert listed.count("shrink") == listed.count("erm") == 1
    assert main(["algorithms", "sh*", "own_method:SHRINK"]) == 0
    said = capsys.readouterr().out.split("\n\n\n")
    assert [text.partition(": ")[0] for text in said] == ["shrink", "own_method:SHRINK"]
    options = [line.split()[:2] for line in said[1].splitlines()[-4:]]
    assert options == [["strength", "2.0"], ["steps_before", "3"], ["how", "mean"], ["cap", "null"]]
