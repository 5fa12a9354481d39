"""An algorithm and a data set for hessalign, found by their entry points."""

from hessalign_spread.algorithm import Spread as Spread
from hessalign_spread.data import make_wards as make_wards
