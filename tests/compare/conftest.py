"""The small campaign."""

from tests.campaign import campaign, small

__all__ = ["campaign", "small"]
