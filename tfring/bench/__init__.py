"""Benchmark: `python -m tfring.bench`, see docs/benchmarks.md.

    cli.py         the command line            options.py     sizes, dtypes, defaults
    catalog.py     who takes part and why not  group.py       one contender's processes
    rounds.py      whose turn it is            result.py      numbers and their summary
    report.py      tables and JSON             plot.py        the picture
    worker.py      what each rank runs         contenders/    one library per file

Nothing here imports TensorFlow, torch or MPI except the contenders' own files, each in its own
processes.
"""
