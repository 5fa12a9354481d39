"""The command line: one file for each verb, imported when it is asked for."""

from hessalign.cli.main import main as main
