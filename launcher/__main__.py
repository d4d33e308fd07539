"""The program ``launch``, also as ``python -m launcher``: what signals do is settled before anything is imported."""

import sys


def main() -> int:
    """Run the command and return its exit status."""
    try:
        from launcher.submission import interrupts

        interrupts.install()
        from launcher import cli
    except KeyboardInterrupt:
        sys.stderr.write("launch: interrupted; nothing was started\n")
        return 130
    status = cli.main()
    interrupts.over()
    return status


if __name__ == "__main__":
    sys.exit(main())
