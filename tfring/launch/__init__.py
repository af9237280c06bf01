"""The launcher: `tfringrun`, `python -m tfring.launch` and `tfring.run`.

Nothing in this package imports TensorFlow.

    cli.py         the command line           flags.py    its Horovod-compatible flags
    function.py    tfring.run                 hosts.py    hosts, slots, places of ranks
    job.py         one job from start to end  failure.py  whom to blame, and the words
    process.py     one worker seen from here  agent.py    ... and from its own host
    output.py      prefixes, files, tails     ssh.py      the way to another host
    rendezvous.py  the store where ranks meet
    records.py     what failing ranks wrote into it
"""
