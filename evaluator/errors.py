"""The one exception that means: the user's input cannot be used as it is."""

from __future__ import annotations


class InputError(ValueError):
    """Unusable input: names the place (file and key), what is wrong and what is allowed.

    The command line prints the message on one line and exits with code 2.
    """
