"""Answers -> pictures. Only this package imports a plotting library, which is an extra: hybridcalc[plot]."""
