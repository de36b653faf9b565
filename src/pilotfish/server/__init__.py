"""HTTP dialects over one service: wire types in, events out. No decision about decoding is made here."""
