"""The rows that the text and the page of a diagnosis share stand under their own columns."""

from types import SimpleNamespace
from unittest.mock import Mock

from hessalign.diagnosis import BoundReport, Diagnosis
from hessalign.diagnosis.text import BOUND_COLUMNS, HEAD_COLUMNS, bound_rows, head_rows

DOMAINS = ("north", "south")


def test_terms_of_a_bound_stand_under_their_names():
    terms = {"hessian_term": 2.0, "gradient_term": 3.0, "target_term": 4.0, "remainder": 5.0}
    pair = SimpleNamespace(source=1, target=0, value=1.0, **terms)
    (row,) = bound_rows(Mock(Diagnosis, domains=DOMAINS), Mock(BoundReport, pairs=[pair]))
    shown = dict(zip(BOUND_COLUMNS, row, strict=True))
    assert shown.pop("source → target") == "south → north"
    expected = {"bound": 1, "Hessian": 2, "gradient": 3, "target": 4, "remainder": 5}
    assert {name: float(text) for name, text in shown.items()} == expected


def test_a_head_is_shown_for_the_domains_that_are_examined():
    head = SimpleNamespace(risk=[0.5, 0.25], accuracy=[0.8, 0.9])
    found = Mock(
        Diagnosis, head=head, domains=DOMAINS, samples=(10, 20), available=(10, 2000), focus=(1,)
    )
    (row,) = head_rows(found)
    shown = dict(zip(HEAD_COLUMNS, row, strict=True))
    assert shown["domain"] == "south"
    assert shown["samples"] == "20 of 2,000"
    assert float(shown["loss"]) == 0.25
    assert shown["accuracy"] == "90.0 %"
