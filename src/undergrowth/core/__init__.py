"""The contracts that every method, engine and topology hangs on."""
