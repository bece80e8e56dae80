"""What do deployment files launch? Files on disk -> engine words, every word with its file, line and column.

Shell scripts, Dockerfiles, systemd units, compose files, Kubernetes and custom resources, engine configuration files
and hybridcalc's own are read, never run. What cannot be known from the files alone comes out as `Unknown`.
"""
