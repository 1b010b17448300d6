"""Linear layer whose sigmoid gates another tensor."""
