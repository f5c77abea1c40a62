"""How dense parameters of several trainers agree: all-reduce, k-step merging, ShadowSync."""
