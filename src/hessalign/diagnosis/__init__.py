"""How different domains are, in what, and what follows: `hessalign diagnose` as a function.

`diagnose` draws samples, fits a head if none is given, goes over all pairs of samples once, and
returns frozen sections, each of which says how it was computed. Nothing here writes or draws.
"""

from hessalign.diagnosis.causes import CauseReport as CauseReport
from hessalign.diagnosis.causes import Finding as Finding
from hessalign.diagnosis.comparison import AttributeReport as AttributeReport
from hessalign.diagnosis.comparison import ContributionReport as ContributionReport
from hessalign.diagnosis.comparison import DistanceReport as DistanceReport
from hessalign.diagnosis.comparison import PairContributions as PairContributions
from hessalign.diagnosis.comparison import PairShift as PairShift
from hessalign.diagnosis.comparison import SampleShare as SampleShare
from hessalign.diagnosis.comparison import ShiftReport as ShiftReport
from hessalign.diagnosis.comparison import ShiftShares as ShiftShares
from hessalign.diagnosis.diagnosis import Diagnosis as Diagnosis
from hessalign.diagnosis.diagnosis import diagnose as diagnose
from hessalign.diagnosis.distances import DistanceMatrix as DistanceMatrix
from hessalign.diagnosis.distances import SpectralDistance as SpectralDistance
from hessalign.diagnosis.distances import SpectralReport as SpectralReport
from hessalign.diagnosis.heads import BoundReport as BoundReport
from hessalign.diagnosis.heads import CrossingReport as CrossingReport
from hessalign.diagnosis.heads import HeadReport as HeadReport
from hessalign.diagnosis.heads import PairBound as PairBound
from hessalign.diagnosis.remedies import RemedyReport as RemedyReport
from hessalign.diagnosis.remedies import Trial as Trial
from hessalign.diagnosis.scores import Estimate as Estimate
from hessalign.diagnosis.transfer import SiteTransfer as SiteTransfer
from hessalign.diagnosis.transfer import TransferReport as TransferReport
from hessalign.diagnosis.verdict import Verdict as Verdict
