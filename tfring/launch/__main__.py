"""`python -m tfring.launch` is `tfringrun`."""

import sys


def main() -> int:
    """Runs `tfringrun`; Ctrl-C is answered in one line even while its modules load.

    Returns:
        The exit code; see `tfring.launch.cli.main`.
    """
    try:
        from tfring.launch import cli

        return cli.main()
    except KeyboardInterrupt:
        print("tfringrun: SIGINT: ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
