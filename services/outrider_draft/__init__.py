"""The draft service: holds a draft model and guesses tokens."""
