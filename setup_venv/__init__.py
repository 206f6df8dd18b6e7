"""Sets up .venv for `./run`, with the standard library of Python 3.10 or newer and nothing else.

`./run` calls it when .venv/stamp does not match:

    python3 -I setup_venv REQUIREMENTS NAMED KEY

It needs no ensurepip and no root. It fetches the pip that REQUIREMENTS pins, checks its hash, and
lets it install the rest.

    errors       errors that a user can correct
    settings     pip's settings for reaching packages on this machine
    client       fetches pages and files as that pip would
    pip          the pinned pip: its wheel, running it, why a run failed
    environment  .venv: its lock, its stamp, its contents

Nothing imports it; it imports nothing from provision, images and verify.
"""
