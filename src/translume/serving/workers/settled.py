"""A process that has begun, and looks no more at what it began with."""

import gc


def settle() -> None:
    """Have garbage be looked for only among what is made from now on.

    To look through what torch, pydantic and the like brought along takes a tenth of a second and more, in which no
    thread does anything else. What is there now is still freed once nobody holds it, but where it holds itself.
    """
    gc.collect()
    gc.freeze()
