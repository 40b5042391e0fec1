"""Tests of h2ping. Packages, so that `from tests.support import ...` works from every folder."""
