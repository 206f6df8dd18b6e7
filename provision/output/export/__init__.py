"""Files that run an image elsewhere: batch scripts, manifests, configurations.

In: one `Deployment`. Out: the text of a file that people own and edit. One module for each
consumer, all of them pure functions. Imports `errors` and `model`.

    deployment --launch (torchrun), names, yaml--> slurm  kubernetes  ray  compose
                                                   devcontainer  apptainer  enroot
"""
