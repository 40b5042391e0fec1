"""The fixtures of tests.support.stage."""

from tests.support.stage import any_stage, certificates, stage

__all__ = ["any_stage", "certificates", "stage"]
