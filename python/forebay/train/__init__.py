"""Training of real models, fed by the loader with a drive's share of bytes: samples a second, time to a target, advice."""
