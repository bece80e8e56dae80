"""What happened in a boot, and what should change? Records, architectures and engines brought together."""
