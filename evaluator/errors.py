"""What is wrong with the user's input: it cannot be used as it is, or does not all do what it seems to."""

from __future__ import annotations


class InputError(ValueError):
    """Unusable input: names the place (file and key), what is wrong and what is allowed.

    The command line prints the message on one line and exits with code 2.
    """


class InputWarning(UserWarning):
    """Input that can be used, of which a part does not do what it seems to; the command line prints it as a note."""
