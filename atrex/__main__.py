"""`python -m atrex`."""

import sys

from atrex.cli import main

sys.exit(main())
