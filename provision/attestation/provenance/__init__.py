"""Where an image comes from: its bill of materials, and the signed statement of its build.

How data flows, and which module does what:

    lock, base      --bom-------->  a CycloneDX document                     (pure)
    lock, a build   --statement-->  an in-toto statement, SLSA provenance    (pure)
    a statement     --bundle----->  signed, as Sigstore's tools read it
    both, a record  --attach----->  beside an image in a registry, and back
    both            --files------>  beside the lock, or where the user wants them
    what was found  --check------>  who signed it, and whether it is of this image

`public` decides which data of a build may be published, `errors` how a statement can be unusable.
What a machine proved about an image is a record (`provision.attestation.record`); it is attached
the same way.
"""
