"""`python -m tests.fuzz`: see cases.py."""

from tests.fuzz.cases import main

raise SystemExit(main())
