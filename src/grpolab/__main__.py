"""`python -m grpolab` is the same program as `grpolab`."""

from grpolab.cli import main

raise SystemExit(main())
