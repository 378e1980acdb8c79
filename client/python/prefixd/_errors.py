"""The error of a caller who asked for something impossible."""


class Error(ValueError):
    """A caller's mistake, in the words of the library or the daemon.

    An absent, late or dying daemon is no mistake: it costs tokens, never an exception.
    """
