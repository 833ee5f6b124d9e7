"""What a log says, for people: summaries, episodes, banks and comparisons, each a pure function of events."""
