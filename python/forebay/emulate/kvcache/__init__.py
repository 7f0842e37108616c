"""KV caches of serving engines on storage: MLPerf Storage v3.0's workload, its files, and a check of anybody's."""
