"""Sets up .venv for `./run`, with the standard library of Python 3.10 or newer and nothing else.

`./run` calls it when .venv/stamp does not match:

    python3 -I setup_venv REQUIREMENTS NAMED KEY

It needs no ensurepip and no root. It fetches the pip that REQUIREMENTS pins, checks its hash, and
lets it install the rest.

    errors       what a user can correct
    settings     how pip is configured to reach packages here
    client       fetches pages and files as that pip would
    pip          the pinned pip: its wheel, a run of it, why a run failed
    environment  .venv: its lock, its stamp, what is in it

Imported by nothing; imports nothing of provision, images and verify.
"""
