"""Answers questions from the documents that a signed-in user can see, with citations."""
