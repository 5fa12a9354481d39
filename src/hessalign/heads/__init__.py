"""Heads on fixed features: their fits, and how far one that is good on a domain fails on another.

`fit_head` fits one domain, `fit_aligned_head` several with like derivatives. `transfer_measure`
finds the worst near-optimal head of the source (Definition 2), `transfer_bound` bounds it by
derivatives (Theorem 1), `worst_case_gap` attacks a trained head (Figure 2).
"""

from hessalign.heads.attack import Attack as Attack
from hessalign.heads.attack import PublishedAttack as PublishedAttack
from hessalign.heads.attack import WorstCaseGap as WorstCaseGap
from hessalign.heads.attack import worst_case_gap as worst_case_gap
from hessalign.heads.bound import TransferBound as TransferBound
from hessalign.heads.bound import transfer_bound as transfer_bound
from hessalign.heads.fit import FittedHead as FittedHead
from hessalign.heads.fit import StrongConvexity as StrongConvexity
from hessalign.heads.fit import fit_aligned_head as fit_aligned_head
from hessalign.heads.fit import fit_head as fit_head
from hessalign.heads.measure import TransferMeasure as TransferMeasure
from hessalign.heads.measure import transfer_measure as transfer_measure
