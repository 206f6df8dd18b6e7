"""Reads from a Python wheel which GPUs it was compiled for, and what is in an image.

    code = measure("https://HOST/torch-2.0.1-cp311-cp311-manylinux1_x86_64.whl")
    code.sm, code.ptx, code.how

The data flow, and the modules:

    a path or a URL --source, remote--> bytes from any offset, with range requests
                    --archive--------> members of the zip, checked against size and checksum
                    --texts----------> version.py, build_info.py, the flags that torch stores
                    --library--------> a library's fatbins, counted (with `elf` and `fatbin`)
                    --verdict--------> what can be claimed about the wheel

`measuring` runs these; `image` inspects a whole image or wheel, `facts` reads only what the loader
would, in a form that can be kept. Nothing that is read is executed.
"""
