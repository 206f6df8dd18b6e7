"""A lock becomes an image: by an engine and Dockerfile.cuda, or from wheels with nothing run.

    plan --base----> the base is pinned                         (base)
    lock --engine--> BuildKit, an image on the engine           (engine)
         --wheels--> layers, written to where they are wanted   (wheels, targets)

Both give a `Made`: an image that is there and has no name yet. It gets its name when no check has
failed in it.
"""
