"""What a language model works with: a folder, a shell behind walls, and the judge."""
