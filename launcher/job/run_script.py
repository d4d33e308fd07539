"""Start a user's script from its copy in the run directory, as if the script itself had been started.

This file is copied into the run directory and run there by whatever Python the job has, so it imports nothing from the
launcher. The script sees what it would see in its original place: the folder of its imports (``sys.path[0]``), its
``__file__``, its arguments. Only the code comes from the copy, so an edit after submission does not reach the job.
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # The run directory, from which nothing should be imported.

import json
import os
import types

FOLDER = "script"  # The folder of the copy, in the run directory.


def main() -> None:
    """Run the copy, or the original if the submitting machine could not see it and made no copy."""
    run = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - The job's Python may be an old one.
    with open(os.path.join(run, "spec.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        script = json.load(file)["script"]
    original = os.path.abspath(script)  # noqa: PTH100
    copy = os.path.join(run, FOLDER, os.path.basename(script))  # noqa: PTH118, PTH119
    path = copy if os.path.isfile(copy) else original  # noqa: PTH113
    sys.path.insert(0, os.path.dirname(original))  # noqa: PTH120
    sys.argv[0] = script
    with open(path, "rb") as source:  # noqa: PTH123
        code = compile(source.read(), path, "exec")
    module = types.ModuleType("__main__")
    module.__file__ = original
    here, sys.modules["__main__"] = sys.modules["__main__"], module  # A module without references is cleared.
    exec(code, module.__dict__)
    del here


if __name__ == "__main__":
    main()
