"""The program ``launch``, also as ``python -m launcher``: what signals do is settled before anything is imported."""

import gc
import sys

_OBJECTS = 100_000
"""Containers that are made before the collector looks for circles. A check makes some 40,000 and no circle that
matters: to look for them, and once more at the end, was a sixteenth of its instructions."""


def main() -> int:
    """Run the command and return its exit status."""
    gc.set_threshold(_OBJECTS)
    try:
        from launcher.submission import interrupts

        interrupts.install()
        from launcher import cli
    except KeyboardInterrupt:
        sys.stderr.write("launch: interrupted; nothing was started\n")
        return 130
    status = cli.main()
    interrupts.over()
    gc.freeze()
    return status


if __name__ == "__main__":
    sys.exit(main())
