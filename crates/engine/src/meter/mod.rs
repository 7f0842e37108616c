//! What a run costs: CPU, power, device traffic, and how noisy the machine was.
