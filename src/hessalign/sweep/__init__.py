"""Sweeps: which jobs there are, and what identifies each."""

from hessalign.sweep.jobs import held_out_sets as held_out_sets
from hessalign.sweep.jobs import list_jobs as list_jobs
from hessalign.training.job import Job as Job
