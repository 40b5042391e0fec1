"""`python -m h2ping` is the `h2ping` command."""

from h2ping.cli import main

raise SystemExit(main())
