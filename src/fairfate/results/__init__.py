"""What a run leaves behind: tables with one schema, what follows from them, and the recommended model."""
