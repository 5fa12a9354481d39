"""Compare domains by their moments, and penalise the differences.

`quantities` says what can be compared, `moments` how the comparison is evaluated, `comparison` what
distances follow, `penalties` which variants of Hessian dispersion there are, `fidelity` how the
paper and its two released codes differ; `parts` and `micro_batches` what is done where a batch is
divided.
"""

from hessalign.alignment.comparison import dispersion as dispersion
from hessalign.alignment.comparison import distances as distances
from hessalign.alignment.comparison import squared_distances as squared_distances
from hessalign.alignment.distance import attribute_distances as attribute_distances
from hessalign.alignment.distance import hessian_distance as hessian_distance
from hessalign.alignment.hessian_alignment import AlignmentTerms as AlignmentTerms
from hessalign.alignment.hessian_alignment import HessianAlignment as HessianAlignment
from hessalign.alignment.micro_batches import MicroBatches as MicroBatches
from hessalign.alignment.moments import Moment as Moment
from hessalign.alignment.parts import Communication as Communication
from hessalign.alignment.parts import communication as communication
from hessalign.alignment.penalties import HESSIAN_KINDS as HESSIAN_KINDS
from hessalign.alignment.penalties import gradient_dispersion as gradient_dispersion
from hessalign.alignment.penalties import hessian_dispersion as hessian_dispersion
from hessalign.alignment.quantities import QUANTITIES as QUANTITIES
from hessalign.alignment.quantities import TABLE_1 as TABLE_1
from hessalign.alignment.quantities import inner_products as inner_products
