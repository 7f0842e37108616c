"""The command line itself: words that complete, manual pages, verbs loaded when they are typed, and spellings of other tools."""
