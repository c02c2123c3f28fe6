"""Matrix products with what follows them elementwise."""
