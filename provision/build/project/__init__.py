"""A user's project: what it declares becomes the request, and its code the last layer.

In: a `Project`, as `provision/sources` reads it. How the data flows:

    options, Project               --request-> a `Request`; `pins` names the line behind a refusal
    the directory's other files    --code----> a layer: `tree` lists them, `program` what they run

Nothing of the project is run, and nothing of it is installed from the network.
"""
