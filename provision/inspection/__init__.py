"""What an inspection found, judged check by check, as a report of the suite's own shape.

So what reads the suite's reports reads these, too. Nothing was run: a pass says that what is in the
image fits together, and that there is code for the GPUs that were named.

    images.inspect.image --> Inspection --needs, versions, code, packages--> Outcome of each check
                                        --report-------------------------> the report
"""
