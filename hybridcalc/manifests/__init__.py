"""What do deployment files launch? Files on disk -> engine words, every word with its file, line and column.

Shell scripts, Dockerfiles, systemd units, compose files, Kubernetes and custom resources, engine configuration files
and hybridcalc's own are read, never run. What the files alone do not say comes out as a word with the reason.
"""
