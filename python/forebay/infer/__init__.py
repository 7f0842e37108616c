"""`forebay infer`: MLCommons' load generator on our paths, and where inference waits for storage."""
