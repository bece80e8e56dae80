"""Which hardware serves a model, which models fit hardware; each answer with its launch line."""
