"""What the words of a diagnosis mean, and where they stand in a text."""

from __future__ import annotations

import re
from typing import Final

TERMS: Final = {
    "site": "A place, device or time that samples come from: a hospital, a camera, a year. The "
    "library calls it a domain.",
    "unseen site": "A site whose samples had no part in training, nor in scaling, filling gaps or "
    "choosing anything.",
    "model of the site itself": "Trained on some samples of the site and tested on others, in turn "
    "(cross-validated): what can be reached there.",
    "drop": "How much worse the model that has not seen the site is than the one of the site "
    "itself, tested on the same samples. Above 0 is worse, for every yardstick.",
    "accuracy": "Share of cases whose class is named rightly. Compare it with always naming the "
    "commonest class.",
    "balanced accuracy": "Mean over classes of the share that is named rightly: rare classes count "
    "as much as frequent ones. Guessing gives 1 / classes.",
    "AUC": "How well cases are ranked: the chance that of a case of a class and one of another the "
    "former gets the higher probability of that class. 1 is perfect, 0.5 chance. It does not "
    "exist where a site has one class only.",
    "log loss": "How well probabilities fit: the mean of −log of the probability that was given to "
    "the right class. Less is better.",
    "calibration error": "By how much probabilities differ from how often they come true. Less is "
    "better: of cases given 80 %, 80 % should be of that class.",
    "commonest class": "Accuracy of always naming the site's commonest class: a model below it is "
    "of no use for naming classes there.",
    "guessing": "What any answer gives that does not look at the case.",
    "95 %": "An interval that holds the true value in 95 of 100 such studies; it covers that both "
    "training and test samples might have been others.",
    "p": "How often chance alone would show as much, corrected for the number of tests. Up to 0.05 "
    "counts as found: without any difference that happens in one of 20 such studies.",
    "label shift": "Classes have other shares at a site. The same kind of case looks alike.",
    "covariate shift": "Cases at a site are of another kind, but the same kind of case gets the "
    "same class.",
    "offset": "Features are moved by a constant at a site, as by another calibration.",
    "scale": "Features are stretched at a site, as by another unit or device.",
    "concept shift": "The same features mean another class at a site.",
    "label noise": "Classes at a site are wrong at random.",
    "sample size": "There are too few samples to learn from.",
    "a plain model": "One model of all sites together, logistic regression on the features.",
    "standardising per site": "Every site's features are brought to mean 0 and variance 1 by its "
    "own samples. It needs a batch of cases of a new site, not their classes.",
    "class weights": "Probabilities are weighted by how frequent classes are at the site in "
    "question, which is estimated from its cases without their classes.",
    "leaving a site out": "A site is left out of training.",
    "aligning": "Training with a penalty on how differently the model errs, and how unsure it is, "
    "at different sites (alignment of gradients and Hessians). Its strength is relative to the "
    "training loss; 0 is a plain model.",
    "head": "A linear model on the features, at which sites are compared.",
    "gradient": "The direction in which a site would change the head: how it errs there.",
    "Hessian": "The curvature of the loss in the head's parameters: where it is unsure.",
    "noise": "What a distance would be if the sites did not differ, for want of samples.",
    "Table 1": "Of the paper: attributes of a head's samples whose means gradients and Hessians "
    "are made of.",
    "spectral norm": "The largest difference in any one direction.",
    "share": "Of a squared distance. Shares add up to 100 %; a negative one says that without it "
    "the sites would be further apart.",
    "regret": "Loss of the head of one site on another, less that of the other's own head.",
    "transfer bound": "Theorem 1 of the paper: how much worse a head can be on another site at "
    "most. A worst case, usually far above what happens.",
}  # fmt: skip
"""What each term means, in the order in which the page explains them."""

_TERM: Final = re.compile(
    "“[^”]*”|"
    + "|".join(rf"(?<!\w){re.escape(term)}(?!\w)" for term in sorted(TERMS, key=len, reverse=True)),
    re.IGNORECASE,
)
_UNLINKED: Final = frozenset({"site", "p", "95 %", "noise", "share", "head", "accuracy"})
"""Terms that are words of every sentence: they are linked from tables only."""


def term_id(term: str) -> str:
    """Where a term is explained on the page."""
    return "term-" + re.sub(r"\W+", "-", term.lower()).strip("-")


def split_terms(text: str) -> list[tuple[str, str]]:
    """A text in pieces, each with the term it is, once each; names in quotes are none."""
    known = {term.lower(): term for term in TERMS if term not in _UNLINKED}
    found, start = [], 0
    for match in _TERM.finditer(text):
        if (term := known.pop(match[0].lower(), None)) is not None:
            found += [(text[start : match.start()], ""), (match[0], term)]
            start = match.end()
    return [*found, (text[start:], "")]
