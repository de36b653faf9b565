"""Between text and token ids: templates in, streamed text and stop strings out."""
