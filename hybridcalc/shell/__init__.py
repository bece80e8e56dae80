"""A command line, read and never run: parsed as bash splits it, which engine it starts, and what its flags say."""
