"""HOW an engine allocates what a model stores: one folder an engine, each reads the same way, none knows another."""
