"""Packages that an index has only the source of: built once in the devel image, then kept.

    requirement --sdists--> the source and what it needs to be built       (index, archive)
    plan --------devel----> the devel image of the same plan, locked, made
    both --------recipe---> `inside` runs in it, without a network         (engine or sandbox)
    wheel ----wheel_check-> its code and its glibc fit the plan            (images.inspect)
          wheel_cache-----> under its key, for `lock --with`  (images.store.built_wheels)

`inside` is a program for the image: it needs only the standard library, and is never imported.
"""
