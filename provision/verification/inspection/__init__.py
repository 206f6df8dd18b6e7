"""Judges the results of an inspection check by check, as a report in the suite's format.

Readers of the suite's reports can read these. Nothing was run: a pass says that what is in the
image fits together, and that there is code for the GPUs that were named.

    images.inspect.image --> Inspection --needs, versions, code, packages--> Outcome of each check
                                        --report-------------------------> the report
"""
