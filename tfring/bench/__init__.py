"""Benchmark: `tfring bench` or `python -m tfring.bench`, see docs/benchmarks.md.

    cli.py         the command line            options.py     collectives, sizes, types
    catalog.py     who takes part and why not  group.py       one contender's processes
    rounds.py      whose turn it is            result.py      numbers and their summary
    report.py      tables and JSON             plot.py        the picture
    checks.py      what is promised            problem.py     inputs and right results
    worker.py      what each rank runs         contenders/    one library per file
    resnet50.py    shapes of its gradients     train/         `tfring bench train`
    mpi_launchers.py                           which MPIs there are

Nothing here imports TensorFlow, torch or MPI except the contenders' own files, each in its own
processes.
"""
