"""The package itself: its version, and where it lies.

``FOLDER`` is ``launcher/``; ``IMPORT_FOLDER`` is the folder that holds it, which goes on the ``PYTHONPATH`` of a Python
that is to import the same ``launcher`` as this one.
"""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

FOLDER = Path(__file__).parent
IMPORT_FOLDER = FOLDER.parent
