"""Derivatives of the loss in the parameters of a classifier head, domain by domain.

`linear_head` gives them in closed form, `autograd_head` for any head module; both provide the
fields of `HeadStatistics`. `hutchinson_diagonal` is the paper's sampled estimate of one of them.
"""

from hessalign.curvature.activations import ACTIVATIONS as ACTIVATIONS
from hessalign.curvature.activations import Activation as Activation
from hessalign.curvature.activations import make_activation as make_activation
from hessalign.curvature.autograd import AutogradHead as AutogradHead
from hessalign.curvature.autograd import autograd_head as autograd_head
from hessalign.curvature.domains import Domains as Domains
from hessalign.curvature.domains import domain_layout as domain_layout
from hessalign.curvature.hutchinson import HeadStatistics as HeadStatistics
from hessalign.curvature.hutchinson import hutchinson_diagonal as hutchinson_diagonal
from hessalign.curvature.linear import LinearHead as LinearHead
from hessalign.curvature.linear import linear_head as linear_head
from hessalign.curvature.losses import LOSSES as LOSSES
from hessalign.curvature.losses import Binary as Binary
from hessalign.curvature.losses import CrossEntropy as CrossEntropy
from hessalign.curvature.losses import OwnLoss as OwnLoss
from hessalign.curvature.losses import Squared as Squared
from hessalign.curvature.losses import make_loss as make_loss
