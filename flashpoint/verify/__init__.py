"""Does this build, on this machine, compute what the model authors' reference code computes?"""
