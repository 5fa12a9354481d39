"""Model selection: from the records of a sweep to tables, as DomainBed defines them.

What is odd about a sweep is reported: torn or repeated records, unfinished runs, mixed protocols,
and what a cell of a table lacks.
"""

from hessalign.selection.collection import Collection as Collection
from hessalign.selection.collection import collect as collect
from hessalign.selection.methods import SELECTIONS as SELECTIONS
from hessalign.selection.methods import Candidate as Candidate
from hessalign.selection.methods import Selection as Selection
from hessalign.selection.methods import choose as choose
from hessalign.selection.methods import find_selection as find_selection
from hessalign.selection.methods import leave_one_out as leave_one_out
from hessalign.selection.methods import oracle as oracle
from hessalign.selection.methods import training_domain as training_domain
from hessalign.selection.reading import read_run as read_run
from hessalign.selection.reading import read_runs as read_runs
from hessalign.selection.records import Note as Note
from hessalign.selection.records import Record as Record
from hessalign.selection.records import Run as Run
from hessalign.selection.records import RunKey as RunKey
from hessalign.selection.records import RunProtocol as RunProtocol
from hessalign.selection.tables import Cell as Cell
from hessalign.selection.tables import Row as Row
from hessalign.selection.tables import Table as Table
from hessalign.selection.tables import build_tables as build_tables
