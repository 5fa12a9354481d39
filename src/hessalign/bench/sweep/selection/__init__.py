"""Model selection: from the records of a sweep to tables, as DomainBed defines them.

What is odd about a sweep is reported: torn or repeated records, unfinished runs, mixed protocols,
and what a cell of a table lacks.
"""

from hessalign.bench.sweep.selection.collection import Collection as Collection
from hessalign.bench.sweep.selection.collection import collect as collect
from hessalign.bench.sweep.selection.reading import Note as Note
from hessalign.bench.sweep.selection.reading import Record as Record
from hessalign.bench.sweep.selection.reading import Run as Run
from hessalign.bench.sweep.selection.reading import RunKey as RunKey
from hessalign.bench.sweep.selection.reading import RunProtocol as RunProtocol
from hessalign.bench.sweep.selection.reading import read_run as read_run
from hessalign.bench.sweep.selection.reading import read_runs as read_runs
from hessalign.bench.sweep.selection.tables import SELECTIONS as SELECTIONS
from hessalign.bench.sweep.selection.tables import Candidate as Candidate
from hessalign.bench.sweep.selection.tables import Cell as Cell
from hessalign.bench.sweep.selection.tables import Row as Row
from hessalign.bench.sweep.selection.tables import Selection as Selection
from hessalign.bench.sweep.selection.tables import Table as Table
from hessalign.bench.sweep.selection.tables import build_tables as build_tables
from hessalign.bench.sweep.selection.tables import choose as choose
from hessalign.bench.sweep.selection.tables import find_selection as find_selection
from hessalign.bench.sweep.selection.tables import leave_one_out as leave_one_out
from hessalign.bench.sweep.selection.tables import oracle as oracle
from hessalign.bench.sweep.selection.tables import training_domain as training_domain
