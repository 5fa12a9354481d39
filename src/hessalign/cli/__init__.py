"""The command line, one file per verb."""

from hessalign.cli.main import main as main
