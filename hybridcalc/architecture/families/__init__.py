"""The families of recurrent layers, one module each: sizes, per-rank shapes, recurrence, label."""
