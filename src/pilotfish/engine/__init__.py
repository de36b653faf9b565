"""The decode loop. Token ids only: no text, no files, no HTTP."""
