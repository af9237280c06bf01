"""Benchmark of training: `tfring bench train`, see docs/benchmarks.md.

    cli.py       the command line         rounds.py    whose turn it is
    models.py    what is trained          parts.py     where a step's time goes
    worker.py    what each rank runs      report.py    tables and JSON
    result.py    numbers, their summary   plot.py      the picture

TensorFlow is imported by the ranks only.
"""
