"""What is told to a caller who asked for something impossible."""


class Error(ValueError):
    """A caller's mistake, in the library's or the daemon's own sentence.

    An absent, late or dying daemon is no mistake: it costs tokens, never an exception.
    """
