"""Emulated training and checkpoints: the workloads of MLPerf Storage, as data, which plans read."""
