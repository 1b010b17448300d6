"""Before torch is loaded, so that the tests' own judges keep still while they wait (`atrex/__init__.py`)."""

import atrex

assert atrex.WORKER
